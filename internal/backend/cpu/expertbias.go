package cpu

import (
	"strobe/internal/backend"
	"strobe/internal/backend/cpu/kernel/vec"
)

// ExpertBias adds the bias of its expert to every row.
func (b *Backend) ExpertBias(x backend.Tensor, ids backend.Ints, bias backend.Vector) {
	id, v := ids.(ints), values(bias)
	b.rowsOf(x.Rows, x.Cols, func(r int) { vec.Add(row(x, r), row(x, r), v[int(id[r])*x.Cols:][:x.Cols]) })
}
