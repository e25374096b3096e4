# JupyterLab with the book's pins:
#   docker build -t book .  &&  docker run --rm -p 127.0.0.1:8888:8888 book
# A plain build takes torch with CUDA, several gigabytes; --build-arg PIP_EXTRA_INDEX_URL=… names an index that has CPU builds.
FROM python:3.11-slim
ARG PIP_EXTRA_INDEX_URL=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN apt-get update \
 && apt-get install -y --no-install-recommends git make \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /book
COPY requirements.txt requirements-lab.txt ./
RUN python -m pip install -r requirements.txt -r requirements-lab.txt
COPY . .
RUN python -m pip install --no-deps -e . && useradd --create-home reader && chown -R reader /book
USER reader
EXPOSE 8888
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--no-browser", "book"]
