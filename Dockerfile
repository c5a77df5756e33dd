# syntax=docker/dockerfile:1
# docker build --target cpu -t appliance:cpu .
# docker run --rm -p 8000:8000 -v "$PWD:/specs:ro" -v appliance-cache:/cache appliance:cpu apply --foreground /specs/deployment.yaml
#
# docker build --target cuda -t appliance:cuda .                                       # docker run --gpus all ...
# docker build --target rocm --build-arg TORCH_INDEX=... -t appliance:rocm .           # docker run --device /dev/kfd --device /dev/dri ...
#
# The spec decides the address. In a container it has to be endpoints.http.host: 0.0.0.0, which asks for API keys.

# ---- the wheel: it holds the Python sources and a library for each processor level
FROM python:3.11-slim-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends cmake g++ make \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN APPLIANCE_LEVELS=all python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

# ---- runtime: what every target has
FROM python:3.11-slim-bookworm AS runtime
RUN useradd --create-home --uid 10001 appliance \
 && install --directory --owner appliance /cache /state
COPY --from=build /wheels /wheels
ENV APPLIANCE_CACHE=/cache APPLIANCE_STATE=/state PYTHONUNBUFFERED=1
WORKDIR /home/appliance
VOLUME ["/cache", "/state"]
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/livez', timeout=4)"]
ENTRYPOINT ["appliance"]
CMD ["apply", "--foreground", "/specs/deployment.yaml"]

# ---- gpu: Triton builds a launcher with a C compiler when it first runs a kernel; the driver is the host's
FROM runtime AS gpu
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*

# ---- cuda: torch brings the libraries of CUDA
FROM gpu AS cuda
RUN python -m pip install --no-cache-dir "$(echo /wheels/*.whl)[cuda]"
USER appliance

# ---- rocm: torch and Triton come from the index of builds for ROCm, with its libraries
FROM gpu AS rocm
ARG TORCH_INDEX
RUN python -m pip install --no-cache-dir --index-url "${TORCH_INDEX:?the index of torch builds for ROCm}" torch \
 && python -m pip install --no-cache-dir "$(echo /wheels/*.whl)[rocm]"
USER appliance

# ---- cpu: no torch, no compiler
FROM runtime AS cpu
RUN python -m pip install --no-cache-dir /wheels/*.whl
USER appliance
