package bench

import (
	"fmt"
	"slices"
	"strings"

	"strobe/internal/speculate"
)

// Mode is a way to generate.
type Mode struct {
	Name    string
	Options speculate.Options
}

// ModeNames lists the modes in the order in which reports show them.
var ModeNames = []string{"plain", "chain", "tree", "mtp", "ngram", "auto"}

// DefaultTree is the number of nodes of the tree mode: about what a pass verifies at
// little more than the cost of a chain.
const DefaultTree = 24

// ModeOptions steer Modes.
type ModeOptions struct {
	Names     []string // nil: all that make sense
	Drafter   string   // the source that the modes chain and tree measure; "" for none
	MTP       bool     // there is a drafter for multi-token prediction
	Max       int      // longest chain; 0: what the drafter can do
	Tree      int      // nodes of a tree; 0: DefaultTree
	Synthetic float64  // pretend this many tokens per pass; 0: verify
}

// Lacks says what a mode needs that is not there, "" if nothing.
func (o *ModeOptions) Lacks(mode string) string {
	switch {
	case mode == "mtp" && !o.MTP:
		return "a layer for multi-token prediction"
	case (mode == "chain" || mode == "tree") && o.Drafter == "":
		return "a drafter"
	}
	return ""
}

// Modes turns names into modes. Plain always comes first: the others are compared with it.
func Modes(opt ModeOptions) ([]Mode, error) {
	names := opt.Names
	if len(names) == 0 {
		switch {
		case opt.Synthetic > 0: // the controller would see through the pretence
			names = []string{"plain", "chain", "tree"}
		case opt.MTP:
			names = []string{"plain", "chain", "tree", "mtp", "auto"}
		case opt.Drafter != "":
			names = []string{"plain", "chain", "tree", "auto"}
		default:
			names = []string{"plain", "ngram"}
		}
	}
	names = slices.Clone(names)
	if !slices.Contains(names, "plain") {
		names = append([]string{"plain"}, names...)
	}
	tree := opt.Tree
	if tree <= 0 {
		tree = DefaultTree
	}
	var modes []Mode
	for _, known := range ModeNames {
		if !slices.Contains(names, known) {
			continue
		}
		o := speculate.Options{Max: opt.Max, Synthetic: opt.Synthetic}
		switch known {
		case "plain":
			o = speculate.Options{Draft: speculate.Off}
		case "chain":
			o.Draft, o.Fixed, o.Tree = opt.Drafter, true, speculate.TreeOff
		case "tree":
			o.Draft, o.Fixed, o.Tree = opt.Drafter, true, tree
		case "ngram", "mtp":
			o.Draft = known
		}
		if what := opt.Lacks(known); what != "" {
			return nil, fmt.Errorf("mode %q needs %s: give it with -d FILE", known, what)
		}
		modes = append(modes, Mode{known, o})
	}
	for _, n := range names {
		if !slices.Contains(ModeNames, n) {
			return nil, fmt.Errorf("mode %q: want some of %s", n, strings.Join(ModeNames, ", "))
		}
	}
	return modes, nil
}
