# The inference server. Built from the repository root:
#   docker build -f deploy/server.Dockerfile -t effective-batching-server .
FROM python:3.11-slim
# For pip, e.g. a wheel index that has torch without CUDA, which makes the image gigabytes smaller.
ARG PIP_OPTIONS=""
WORKDIR /app
COPY requirements.txt .
RUN pip install --no-cache-dir $PIP_OPTIONS -r requirements.txt \
 && useradd --uid 10001 --no-create-home app \
 && mkdir /models && chown 10001:10001 /models
COPY . .
# EB_PYTHON: server.sh uses this interpreter and makes no environment of its own.
# HF_HOME: where downloaded weights are kept; mount a volume there to keep them.
ENV EB_PYTHON=/usr/local/bin/python EB_HOST=0.0.0.0 EB_PORT=8500 HF_HOME=/models \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8500
ENTRYPOINT ["./server.sh"]
CMD ["dynamic"]
