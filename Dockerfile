# syntax=docker/dockerfile:1
# docker build --target cpu -t appliance:cpu .
# docker run --rm -p 8000:8000 -v "$PWD:/specs:ro" -v appliance-cache:/cache appliance:cpu apply --foreground /specs/deployment.yaml
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
