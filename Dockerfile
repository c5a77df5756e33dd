# syntax=docker/dockerfile:1
# docker build --target cpu -t appliance:cpu .
# docker run --rm -p 8000:8000 -v "$PWD:/specs:ro" -v appliance-cache:/cache appliance:cpu apply --foreground /specs/deployment.yaml
#
# The spec decides the address. In a container it has to be endpoints.http.host: 0.0.0.0, which asks for API keys.

# ---- one wheel for every stage: it holds the Python sources and a library for each processor level
FROM python:3.11-slim-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends cmake g++ make \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN APPLIANCE_LEVELS=all python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

# ---- cpu: no torch, no compiler
FROM python:3.11-slim-bookworm AS cpu
COPY --from=build /wheels /wheels
RUN python -m pip install --no-cache-dir /wheels/*.whl \
 && useradd --create-home --uid 10001 appliance \
 && install --directory --owner appliance /cache /state
ENV APPLIANCE_CACHE=/cache APPLIANCE_STATE=/state PYTHONUNBUFFERED=1
USER appliance
WORKDIR /home/appliance
VOLUME ["/cache", "/state"]
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/livez', timeout=4)"]
ENTRYPOINT ["appliance"]
CMD ["apply", "--foreground", "/specs/deployment.yaml"]

# ---- cuda: the same wheel beside torch. The planner says which models and formats a GPU runs in this version.
FROM nvidia/cuda:12.8.1-runtime-ubuntu24.04 AS cuda
ARG EXTRAS=torch
ENV PATH=/venv/bin:$PATH
COPY --from=build /wheels /wheels
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /venv \
 && for wheel in /wheels/*.whl; do python -m pip install --no-cache-dir "${wheel}[${EXTRAS}]"; done \
 && useradd --create-home --uid 10001 appliance \
 && install --directory --owner appliance /cache /state
ENV APPLIANCE_CACHE=/cache APPLIANCE_STATE=/state PYTHONUNBUFFERED=1
USER appliance
WORKDIR /home/appliance
VOLUME ["/cache", "/state"]
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/livez', timeout=4)"]
ENTRYPOINT ["appliance"]
CMD ["apply", "--foreground", "/specs/deployment.yaml"]

# ---- rocm: as cuda, on AMD's base; torch for ROCm comes from the index given as TORCH_INDEX
FROM rocm/dev-ubuntu-24.04:6.4.1 AS rocm
ARG TORCH_INDEX
ENV PATH=/venv/bin:$PATH
COPY --from=build /wheels /wheels
# hadolint ignore=DL3008,DL3013
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /venv \
 && python -m pip install --no-cache-dir --index-url "${TORCH_INDEX:?pass --build-arg TORCH_INDEX}" torch \
 && python -m pip install --no-cache-dir /wheels/*.whl \
 && groupadd --system --force render \
 && useradd --create-home --uid 10001 --groups video,render appliance \
 && install --directory --owner appliance /cache /state
ENV APPLIANCE_CACHE=/cache APPLIANCE_STATE=/state PYTHONUNBUFFERED=1
USER appliance
WORKDIR /home/appliance
VOLUME ["/cache", "/state"]
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/livez', timeout=4)"]
ENTRYPOINT ["appliance"]
CMD ["apply", "--foreground", "/specs/deployment.yaml"]
