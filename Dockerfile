# The service with the published evidence in it.  Two targets:
#
#   docker build --target cpu  -t claimcheck .         small, no CUDA (the default)
#   docker build --target cuda -t claimcheck:cuda .    run with --gpus all
#
#   docker run -p 127.0.0.1:8000:8000 claimcheck
#   docker run -p 127.0.0.1:8000:8000 -v "$PWD/data:/app/data:ro" claimcheck     your own results and checkpoints
#   docker run --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges -p 127.0.0.1:8000:8000 claimcheck
#
# docs/service.md has the settings; behind another name than localhost, CLAIMCHECK_ALLOWED_HOSTS is one to set.

# For builds that repeat to the byte, name the tag's digest: --build-arg PYTHON_IMAGE=python@sha256:…
ARG PYTHON_IMAGE=python:3.12.12-slim-bookworm
FROM ${PYTHON_IMAGE} AS base
ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    UV_NO_CACHE=1
WORKDIR /app

# The wheels bring all they need, CUDA included: no compiler and no system package in any stage.
FROM base AS cpu-packages
COPY requirements requirements
COPY .ci/setup .ci/setup
RUN .ci/setup serving cpu

FROM base AS cuda-packages
COPY requirements requirements
COPY .ci/setup .ci/setup
RUN .ci/setup serving locked

FROM base AS app
RUN useradd --system --uid 10001 --create-home claimcheck
# Who runs it owns nothing below /app.  What is cached (the page's chart scripts) lies in memory.
ENV PATH=/app/.venv/bin:$PATH \
    XDG_CACHE_HOME=/dev/shm
COPY LICENSE NOTICE params.yaml ./
COPY params params
COPY stages stages
COPY service service
COPY data data
COPY docs/verdicts.md docs/glossary.md docs/
EXPOSE 8000
# Not ready without a database: so the check asks for readiness, not for a process.
HEALTHCHECK --interval=30s --timeout=5s --start-period=40s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health/ready', timeout=4)"]
CMD ["python", "-m", "service", "--host", "0.0.0.0", "--port", "8000"]

FROM app AS cuda
ENV CLAIMCHECK_DEVICE=cuda \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=cuda-packages /app/.venv /app/.venv
RUN python -m stages.analyse && python -m stages.record
USER 10001

FROM app AS cpu
ENV CLAIMCHECK_DEVICE=cpu
COPY --from=cpu-packages /app/.venv /app/.venv
RUN python -m stages.analyse && python -m stages.record
USER 10001
