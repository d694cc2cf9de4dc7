# docker build -t strobe .
# docker run -p 8080:8080 -v strobe:/cache strobe                               the built-in model
# docker run -p 8080:8080 -v strobe:/cache -e STROBE_MODEL=qwen3.5-4b strobe    one that is downloaded once
# docker run --gpus all ...                                                     on NVIDIA's GPUs
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=devel
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /strobe ./cmd/strobe

# The program needs a loader and a C library to load the driver of a GPU, and certificates to download models.
FROM debian:stable-slim
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home strobe && install -d -o strobe /cache
COPY --from=build /strobe /usr/local/bin/strobe
USER strobe
ENV HF_HOME=/cache STROBE_HOST=0.0.0.0 NVIDIA_DRIVER_CAPABILITIES=compute,utility
VOLUME /cache
EXPOSE 8080
HEALTHCHECK --start-period=10m CMD ["strobe", "ps"]
ENTRYPOINT ["strobe"]
CMD ["serve"]
