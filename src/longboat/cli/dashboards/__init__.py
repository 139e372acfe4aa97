"""``longboat dashboards``: files for Grafana and Prometheus."""
