package model

import (
	"fmt"

	"strobe/internal/backend"
	"strobe/internal/cache"
	"strobe/internal/nn"
)

// Image is a picture in a sequence: rows that an encoder made stand where tokens would. In Segment.Tokens their ids are
// below 0 and otherwise free.
//
// In models with three axes of positions (Config.Axes) all rows of an image have the time at which it begins, and the
// place in its grid is added to the other two. What follows goes on after the longer side of the grid, so positions
// differ from the number of rows.
type Image struct {
	At   int       // index of the first row in the sequence
	W, H int       // grid of the rows, row by row
	Rows []float32 // [W*H, hidden]; may be nil in passes without them
}

// Len is the number of rows.
func (m *Image) Len() int { return m.W * m.H }

// Positions returns the three positions of the row at an index of a sequence with images: time, y and x.
func Positions(images []Image, index int) [3]int32 {
	lag := 0 // rows without a position of their own
	for i := range images {
		m := &images[i]
		if index < m.At {
			break
		}
		if at := index - m.At; at < m.Len() {
			p := m.At - lag
			return [3]int32{int32(p), int32(p + at/m.W), int32(p + at%m.W)}
		}
		lag += m.Len() - max(m.W, m.H)
	}
	p := int32(index - lag)
	return [3]int32{p, p, p}
}

// positions replaces indices of rows by positions where images make them differ.
func (m *Model) positions(segs []Segment, b *cache.Batch) {
	if !m.Axes {
		return
	}
	row := 0
	for i := range segs {
		s := &segs[i]
		for range s.Tokens {
			if len(s.Images) > 0 {
				p := Positions(s.Images, int(b.Pos[row]))
				if p[1] != p[0] || p[2] != p[0] {
					b.Spread()
				}
				b.Pos[row] = p[0]
				if b.More != nil {
					b.More[0][row], b.More[1][row] = p[1], p[2]
				}
			}
			row++
		}
	}
}

// CheckTokens says what is wrong with tokens that follow so many others of a text with images: ids that the vocabulary
// does not have, or that stand for rows of images and have none.
func (m *Model) CheckTokens(tokens []int32, images []Image, after int) error {
	for i, id := range tokens {
		if id >= 0 && int(id) < m.Vocab {
			continue
		}
		image := imageAt(images, after+i)
		switch {
		case id >= 0 || images == nil:
			return fmt.Errorf("token id %d is outside the vocabulary of %d", id, m.Vocab)
		case image == nil:
			return fmt.Errorf("token id %d at %d is not a row of an image", id, after+i)
		case len(image.Rows) != image.Len()*m.Hidden:
			return fmt.Errorf("an image of %d x %d rows has %d values; want %d", image.W, image.H, len(image.Rows),
				image.Len()*m.Hidden)
		}
	}
	return nil
}

// checkImages says why rows of images cannot be where a segment has them.
func (m *Model) checkImages(s *Segment, from int) error {
	to := from + len(s.Tokens)
	for i := range s.Images {
		p := &s.Images[i]
		end := p.At + p.Len()
		switch {
		case p.W < 1 || p.H < 1 || p.At < 0:
			return fmt.Errorf("an image of %d x %d rows at %d", p.W, p.H, p.At)
		case end <= from || p.At >= to:
		case s.Parents != nil:
			return fmt.Errorf("rows of an image in a tree")
		case m.Mutual && (p.At < from || end > to):
			return fmt.Errorf("a part of an image of %d rows: they see each other and must be in one pass", p.Len())
		}
	}
	return nil
}

// imageAt finds the image that has a row at an index of the sequence.
func imageAt(images []Image, index int) *Image {
	for i := range images {
		if m := &images[i]; index >= m.At && index < m.At+m.Len() {
			return m
		}
	}
	return nil
}

// imageRows is the rows of images in a pass. The host writes them behind a table of embeddings before the pass begins,
// and each row of the batch is gathered from the table.
type imageRows struct {
	rows  [][]float32    // [hidden] each
	at    []int          // rows of the batch
	from  []int32        // per row of the batch: its row in the table; nil without images
	table backend.Tensor // [rows of the batch + rows of images, hidden]
}

func (r *imageRows) count() int { return len(r.rows) }

// add takes the rows of a segment that begins at a row of the batch. It returns those that see each other.
func (r *imageRows) add(m *Model, s *Segment, first int) (mutual [][2]int) {
	for i, id := range s.Tokens {
		if id >= 0 {
			continue
		}
		index := s.Seq.Len() + i
		image := imageAt(s.Images, index)
		r.rows = append(r.rows, image.Rows[(index-image.At)*m.Hidden:][:m.Hidden])
		r.at = append(r.at, first+i)
		if m.Mutual && index == image.At {
			mutual = append(mutual, [2]int{i, i + image.Len()})
		}
	}
	return mutual
}

// write makes the table for a batch of n rows.
func (r *imageRows) write(m *Model, s *nn.Step, n int) {
	if len(r.rows) == 0 {
		return
	}
	r.table = s.New(s.N+s.Pad(len(r.rows)), m.Hidden)
	r.from = make([]int32, n)
	for i := range r.from {
		r.from[i] = int32(i)
	}
	values := make([]float32, 0, len(r.rows)*m.Hidden)
	for i, row := range r.rows {
		r.from[r.at[i]] = int32(s.N + i)
		values = append(values, row...)
	}
	s.Write(r.table.Slice(s.N, len(r.rows)), values)
}
