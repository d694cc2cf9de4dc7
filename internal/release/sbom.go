package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"
)

// materials is the list of what is in the program, in CycloneDX's format.
func (r *release) materials() ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(r.root, licensesFile))
	if err != nil {
		return nil, err
	}
	type license struct {
		Expression string `json:"expression"`
	}
	type component struct {
		Type     string    `json:"type"`
		Ref      string    `json:"bom-ref"`
		Name     string    `json:"name"`
		Version  string    `json:"version,omitempty"`
		Purl     string    `json:"purl,omitempty"`
		Licenses []license `json:"licenses"`
	}
	product := component{"application", "strobe", "strobe", r.version, "pkg:golang/" + r.module + "@" + r.version,
		[]license{{licenseID}}}
	all := []component{}
	refs := []string{}
	for _, p := range listed(string(text)) {
		c := component{Type: "library", Ref: p.name, Name: p.name, Version: p.version, Licenses: []license{{p.text}}}
		if p.version != "" {
			c.Purl = "pkg:golang/" + p.name + "@" + p.version
		}
		all = append(all, c)
		refs = append(refs, c.Ref)
	}
	return json.MarshalIndent(map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
		"metadata":     map[string]any{"timestamp": r.date.Format(time.RFC3339), "component": product},
		"components":   all,
		"dependencies": []map[string]any{{"ref": product.Ref, "dependsOn": refs}},
	}, "", "  ")
}
