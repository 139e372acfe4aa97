{{- define "longboat.name" -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- end }}
{{- define "longboat.image" -}}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{- end }}
{{- define "longboat.tokenSecret" -}}{{ .Values.secrets.clusterToken | default (printf "%s-cluster-token" (include "longboat.name" .)) }}{{- end }}
{{- define "longboat.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "longboat.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}
{{- define "longboat.head" -}}{{ include "longboat.name" . }}-ray-head-svc{{- end }}
{{- define "longboat.port" -}}{{ ((.Values.fleet.gateway).port) | default 8000 }}{{- end }}
{{- define "longboat.scheme" -}}{{ if (.Values.fleet.gateway).tls }}HTTPS{{ else }}HTTP{{ end }}{{- end }}
{{/* Seconds that a drain may take within a pod's grace period. */}}
{{- define "longboat.drainSeconds" -}}{{ max (sub . 30) (div . 2) }}{{- end }}
{{- define "longboat.labels" -}}
app.kubernetes.io/name: longboat
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
{{/* Labels of our own: KubeRay writes others of its own to its pods. */}}
{{- define "longboat.podLabels" -}}
longboat/instance: {{ .Release.Name }}
{{- end }}
{{/* The variables with which `longboat node start` would start Ray. */}}
{{- define "longboat.rayEnv" -}}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
- {name: RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO, value: "0"}
- {name: RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL, value: minor}
- {name: RAY_gcs_rpc_server_reconnect_timeout_s, value: "3600"}
- {name: RAY_prestart_worker_first_driver, value: "0"}
- {name: RAY_worker_niceness, value: "0"}
- {name: RAY_task_events_report_interval_ms, value: "0"}
- {name: RAY_SERVE_CONTROL_LOOP_INTERVAL_S, value: "0.25"}
- {name: RAY_SERVE_METRICS_EXPORT_INTERVAL_MS, value: "10000"}
- {name: REPORTER_UPDATE_INTERVAL_MS, value: "15000"}
- {name: RAY_preload_python_modules, value: longboat.cluster.ray.calm_imports}
- {name: LONGBOAT_RUN, value: /run/longboat/node}
- {name: LONGBOAT_NODE, value: /run/longboat/node}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end }}
{{/* What a pod needs that KubeRay does not start itself. */}}
{{- define "longboat.tokenEnv" -}}
- {name: RAY_AUTH_MODE, value: token}
- name: RAY_AUTH_TOKEN
  valueFrom: {secretKeyRef: {name: {{ include "longboat.tokenSecret" . }}, key: auth_token}}
{{- end }}
{{- define "longboat.headEnv" -}}
- {name: RAY_gcs_storage, value: rocksdb}
- {name: RAY_gcs_storage_path, value: /state/gcs}
- {name: RAY_health_check_initial_delay_ms, value: "1000"}
- {name: RAY_health_check_period_ms, value: "1000"}
- {name: RAY_health_check_timeout_ms, value: "1000"}
- {name: RAY_health_check_failure_threshold, value: "3"}
{{- end }}
{{- define "longboat.envFrom" -}}
{{- if .Values.secrets.environment }}
envFrom:
  - secretRef: {name: {{ .Values.secrets.environment }}}
{{- end }}
{{- end }}
{{- define "longboat.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- define "longboat.mounts" -}}
- {name: run, mountPath: /run/longboat}
- {name: tmp, mountPath: /tmp}
{{- if .Values.secrets.tls }}
- {name: tls, mountPath: /etc/longboat/tls, readOnly: true}
{{- end }}
{{- end }}
{{- define "longboat.volumes" -}}
- {name: run, emptyDir: {}}
- {name: tmp, emptyDir: {}}
{{- if .Values.secrets.tls }}
- {name: tls, secret: {secretName: {{ .Values.secrets.tls }}, defaultMode: 0440}}
{{- end }}
{{- end }}
{{- define "longboat.pod" -}}
serviceAccountName: {{ include "longboat.serviceAccount" . }}
automountServiceAccountToken: false
{{/* The pod's own first process collects orphans: `ray start`, which would be first, collects none but its children. */}}
shareProcessNamespace: true
securityContext: {{ toJson .Values.podSecurityContext }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- end }}
