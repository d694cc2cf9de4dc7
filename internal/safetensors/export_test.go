package safetensors

import "sort"

// Parse reads a file that is already in memory; name stands for its path in
// errors. The File uses data, which must not change.
func Parse(name string, data []byte) (*File, error) {
	tensors, meta, err := parse(name, data)
	if err != nil {
		return nil, err
	}
	f := &File{tensors: map[string]*Tensor{}, meta: meta}
	for _, t := range tensors {
		f.tensors[t.Name] = t
		f.names = append(f.names, t.Name)
	}
	sort.Strings(f.names)
	return f, nil
}

// Metadata is the free-form text of the header; of the index for shards.
func (f *File) Metadata() map[string]string { return f.meta }
