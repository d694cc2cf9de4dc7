package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

// TestServiceFolders: the unit and the images have a folder for all that is kept, since their user has no home.
func TestServiceFolders(t *testing.T) {
	for path, text := range deployFiles(t, "packaging/strobe.service") {
		switch filepath.Base(path) {
		case "strobe.service":
			if !strings.Contains(text, "XDG_CACHE_HOME=/var/cache ") || !strings.Contains(text, "CacheDirectory=strobe") ||
				!strings.Contains(text, "CUDA_CACHE_PATH=/var/cache/strobe/") {
				t.Errorf("%s sets no folder for caches", path)
			}
		case "Dockerfile":
			// Images that others are made from; those for CUDA and Vulkan have one base.
			for image := range strings.SplitSeq(text, "\nFROM ") {
				if strings.Contains(image, "\nENTRYPOINT ") && (!strings.Contains(image, "XDG_CACHE_HOME=/cache") ||
					!strings.Contains(image, "/empty /cache") || !strings.Contains(image, "\nUSER 65532")) {
					t.Errorf("%s: an image without a folder for caches, or a user: %s", path, image)
				}
			}
			if n := strings.Count(text, "\nENTRYPOINT "); n != 2 {
				t.Errorf("%s: %d images that can be run, want 2", path, n)
			}
		}
	}
}

// TestNoHome: without any folder to keep things in the program works.
func TestNoHome(t *testing.T) {
	for _, name := range []string{"HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "LocalAppData",
		"AppData", "USERPROFILE"} {
		t.Setenv(name, "")
	}
	model := testkit.Golden(t, "qwen3/model.gguf")
	for _, line := range []string{"config", "list --known", "show " + model, "inspect " + model,
		"run -m " + model + " -n 2 -p x",
		"chat -m " + model, "devices"} {
		var out, errs bytes.Buffer
		code := run(t.Context(), strings.Fields(line), strings.NewReader("x\n"), &out, &errs)
		if code != exitOK || out.Len() == 0 {
			t.Errorf("strobe %s: code %d, %s%s", line, code, out.String(), errs.String())
		}
	}
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"run", "qwen3.5-4b", "x"}, nil, &out, &errs); code != exitError ||
		!strings.Contains(errs.String(), "HF_HOME") {
		t.Errorf("a download: code %d, %s", code, errs.String())
	}
}

// TestNoCacheFolder: a server that cannot keep anything says so and serves.
func TestNoCacheFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]bool{file: true, t.TempDir(): false} {
		t.Setenv("XDG_CACHE_HOME", dir)
		url, stop := serve(t, "-m", testkit.Golden(t, "qwen3/model.gguf"))
		ready(t, url)
		if code, log := stop(); code != exitOK || strings.Contains(log, "no folder to keep") != want {
			t.Errorf("code %d, %s", code, log)
		}
		if files, _ := filepath.Glob(filepath.Join(dir, "strobe", "writable*")); len(files) > 0 {
			t.Errorf("it leaves %s", files)
		}
	}
}

// TestInspectBadDrafters: a drafter that run would refuse does not pass, with or without its model.
func TestInspectBadDrafters(t *testing.T) {
	good := edit.Golden(t, "dflash-qwen3")
	model := testkit.Golden(t, "qwen3/model.gguf")
	values := good.Values(t, "output_norm.weight")
	values[1] = float32(math.NaN())
	key := good.Arch() + "."
	for want, path := range map[string]string{
		"block of 0 tokens":   good.Clone().Set(key+"block_size", uint32(0)).Write(t),
		"block of 257 tokens": good.Clone().Set(key+"block_size", uint32(257)).Write(t),
		"epsilon is NaN":      good.Clone().Set(key+"attention.layer_norm_rms_epsilon", float32(math.NaN())).Write(t),
		"NaN":                 good.Clone().Put("output_norm.weight", values, len(values)).Write(t),
	} {
		for _, args := range [][]string{{"inspect", path}, {"inspect", path, "--target", model}} {
			var out, errs bytes.Buffer
			if code := run(t.Context(), args, nil, &out, &errs); code != exitError || !strings.Contains(out.String(), want) {
				t.Errorf("%s: code %d, %s%s", want, code, out.String(), errs.String())
			}
		}
	}
	for _, x := range []struct {
		f    *edit.File
		name string
	}{
		{edit.Block(t, "qwen35"), "blk.2.nextn.eh_proj.weight"},
		{edit.Golden(t, "gemma4-assistant"), "nextn.pre_projection.weight"},
	} {
		values := x.f.Values(t, x.name)
		values[len(values)-1] = float32(math.NaN())
		path := x.f.Put(x.name, values, x.f.Tensor(x.name).Shape...).Write(t)
		var out, errs bytes.Buffer
		if code := run(t.Context(), []string{"inspect", path}, nil, &out, &errs); code != exitError ||
			!strings.Contains(out.String(), "the drafter cannot guess: ") || !strings.Contains(out.String(), x.name) {
			t.Errorf("%s: code %d, %s%s", x.name, code, out.String(), errs.String())
		}
	}
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"inspect", good.Write(t), "--target", model}, nil, &out, &errs); code != exitOK ||
		!strings.Contains(out.String(), "the drafter loads beside the target") {
		t.Errorf("a good one: code %d, %s%s", code, out.String(), errs.String())
	}
	// What is advised is accepted.
	args := []string{"inspect", testkit.Golden(t, "dflash-qwen3/model.gguf"), "--against",
		testkit.Golden(t, "dflash-qwen3/hf")}
	errs.Reset()
	if code := run(t.Context(), args, nil, &out, &errs); code != exitUsage ||
		!strings.Contains(errs.String(), "give the GGUF file of its model with --target") {
		t.Errorf("without its model: code %d, %s", code, errs.String())
	}
	if code := run(t.Context(), append(args, "--target", model), nil, &out, &errs); code != exitOK {
		t.Errorf("with its model: code %d, %s", code, errs.String())
	}
}

// TestIdleSettings: settings that would do nothing are errors.
func TestIdleSettings(t *testing.T) {
	model := testkit.Golden(t, "qwen3/model.gguf")
	var out, errs bytes.Buffer
	file := filepath.Join(t.TempDir(), "c.toml")
	for table, want := range map[string]int{"nosuch": exitError, "mine": exitOK} {
		if err := os.WriteFile(file, []byte("[defaults.\""+table+"\"]\ntemp = 0.1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"-m", model, "--alias", "mine"}, {"--alias", "mine"}} {
			if want == exitOK {
				url, stop := serve(t, append(args, "--config", file)...)
				ready(t, url)
				if code, log := stop(); code != exitOK {
					t.Errorf("%v: code %d, %s", args, code, log)
				}
				continue
			}
			errs.Reset()
			code := run(t.Context(), append([]string{"serve", "--port", "0", "--config", file}, args...), nil, &out, &errs)
			if code != want || !strings.Contains(errs.String(), `defaults."nosuch": there is no model of that name; offered are mine`) {
				t.Errorf("%v: code %d, %s", args, code, errs.String())
			}
		}
	}
}
