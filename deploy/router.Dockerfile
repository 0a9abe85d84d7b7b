# The router alone: no torch, no models. Built from the repository root:
#   docker build -f deploy/router.Dockerfile -t effective-batching-router .
FROM python:3.11-slim
ARG PIP_OPTIONS=""
WORKDIR /app
COPY requirements.txt .
RUN grep -E '^(httptools|uvloop|msgspec|prometheus-client|opentelemetry-[a-z-]+)[^a-z-]' requirements.txt > router.txt \
 && pip install --no-cache-dir $PIP_OPTIONS -r router.txt \
 && useradd --uid 10001 --no-create-home app
COPY options.py seams.py ./
COPY scheduling scheduling
COPY telemetry telemetry
COPY web web
COPY router router
ENV TIB_HOST=0.0.0.0 TIB_PORT=8000 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8000
ENTRYPOINT ["python", "-m", "router"]
