// Package check proves the manifests in deploy/: kustomize builds them, and every object is decoded strictly into
// the official types, which refuses fields that do not exist. It is a module of its own because those types
// bring many others along.
package check
