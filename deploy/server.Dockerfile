# The inference server. Built from the repository root:
#   docker build -f deploy/server.Dockerfile -t effective-batching-server .
FROM python:3.11-slim
# For pip: a wheel index that has torch without CUDA makes the image gigabytes smaller.
ARG PIP_OPTIONS=""
# g++ is also needed at run time: the kernels are compiled for the container's processor.
RUN apt-get update && apt-get install -y --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY requirements.txt .
RUN pip install --no-cache-dir $PIP_OPTIONS -r requirements.txt \
 && useradd --uid 10001 --no-create-home app \
 && mkdir /models /data && chown 10001:10001 /models /data
COPY . .
# EB_PYTHON: server.sh uses this interpreter instead of a virtual environment.
# HF_HOME, XDG_CACHE_HOME, TRITON_CACHE_DIR: for downloaded weights and compiled kernels. Mount a volume there to
# keep them; it must allow execution (a tmpfs does not by default).
# DATA_DIR: for the jobs of the Batch API; mount a volume there, or set DATABASE_URL instead.
ENV EB_PYTHON=/usr/local/bin/python EB_HOST=0.0.0.0 EB_PORT=8500 \
    HF_HOME=/models XDG_CACHE_HOME=/models/cache TRITON_CACHE_DIR=/models/cache/triton \
    DATA_DIR=/data \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8500
ENTRYPOINT ["./server.sh"]
CMD ["dynamic"]
