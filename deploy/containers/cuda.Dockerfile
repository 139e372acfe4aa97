# Longboat with vLLM for NVIDIA cards. Build it in the root of a checkout:
#   docker build -f deploy/containers/cuda.Dockerfile -t longboat:0.1.0-cuda .
# The host needs the NVIDIA driver and its container toolkit; the CUDA libraries come with PyTorch.
ARG BASE=docker.io/library/debian:12.12-slim

FROM ${BASE} AS build
ENV DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 UV_SYSTEM_CERTS=1
# The image's user cannot write bytecode: without it, each start of a process compiles all that it imports.
ENV UV_COMPILE_BYTECODE=1
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates gcc libc6-dev python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY requirements/bootstrap.txt requirements/dev.txt requirements/
RUN python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --quiet --require-hashes -r requirements/bootstrap.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
RUN /opt/venv/bin/uv pip install --quiet --no-cache --python /opt/venv/bin/python \
    --constraints requirements/dev.txt --build-constraints requirements/dev.txt '.[cluster,redis]'

FROM build AS engine
# Empty: no engine, for the head and for gateways.
ARG ENGINE=vllm
ENV LONGBOAT_HOME=/var/lib/longboat UV_NO_CACHE=1
RUN mkdir --parents /var/lib/longboat \
    && if [ -n "${ENGINE}" ]; then \
        /opt/venv/bin/longboat engines install "${ENGINE}" --platform cuda; fi \
    && chmod --recursive g=u /var/lib/longboat

FROM ${BASE}
ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates g++ libnuma1 python3 python3-dev tini \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 longboat \
    && useradd --uid 10001 --gid 10001 --home-dir /home/longboat --create-home longboat \
    && install --directory --owner=10001 --group=0 --mode=0775 \
        /var/lib/longboat /var/lib/longboat/keys /var/lib/longboat/weights /run/longboat /state \
        /home/longboat/.cache /home/longboat/.cache/huggingface
COPY --from=build /opt/venv /opt/venv
# OpenShift runs the image as a user without a name, of group 0: what the image's user may write, that group may.
COPY --from=engine --chown=10001:0 /var/lib/longboat /var/lib/longboat
COPY --chmod=0555 deploy/containers/health.py deploy/containers/serve.sh /usr/local/bin/
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENV PATH=/opt/venv/bin:$PATH LONGBOAT_HOME=/var/lib/longboat LONGBOAT_RUN=/run/longboat/node PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /home/longboat
VOLUME ["/var/lib/longboat/weights", "/state"]
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 CMD ["python3", "-S", "/usr/local/bin/health.py"]
ENTRYPOINT ["tini", "--"]
CMD ["serve.sh"]
