package gguf

// Paths lists the files that Close puts in place.
func (w *Writer) Paths() []string {
	paths := make([]string, len(w.files))
	for i, o := range w.files {
		paths[i] = o.final
	}
	return paths
}
