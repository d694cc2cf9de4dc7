package platform

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// MaxText is the size limit of files that people write by hand: settings, keys, certificates, templates, grammars.
const MaxText = 1 << 20

// OpenRegular opens the regular file at path for reading. Anything else is an error at once: opening a pipe would wait
// for a writer, and a device may never end.
func OpenRegular(path string) (*os.File, error) {
	st, err := os.Stat(path) // before the open, which does things to some devices
	if err != nil {
		if pe := (*os.PathError)(nil); errors.As(err, &pe) {
			pe.Op = "open" // what the caller wanted
		}
		return nil, err
	}
	if err := regular(path, st); err != nil {
		return nil, err
	}
	return openLooking(path)
}

// openLooking opens the file at path and looks at it afterwards: it may be another one by now.
func openLooking(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|dontWait, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil {
		err = regular(path, st)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ReadFile reads the regular file at path, which may have up to limit bytes.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadLimited(f, path, limit)
}

// ReadLimited reads r to its end, which must come within limit bytes. The error calls r by its name.
func ReadLimited(r io.Reader, name string, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		return nil, fmt.Errorf("%s: has more than the %d bytes that may be in it", name, limit)
	}
	return b, err
}

// regular is nil for a regular file and says what another one is.
func regular(path string, st fs.FileInfo) error {
	what := "not a regular file"
	switch mode := st.Mode(); {
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		return fmt.Errorf("%s: is a folder, not a file", path)
	case mode&fs.ModeNamedPipe != 0:
		what = "a pipe"
	case mode&fs.ModeDevice != 0:
		what = "a device"
	case mode&fs.ModeSocket != 0:
		what = "a socket"
	}
	return fmt.Errorf("%s: is %s; only regular files can be read: copy its content to a file", path, what)
}
