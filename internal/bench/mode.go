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
var ModeNames = []string{"plain", "chain", "tree", "mtp", "eagle3", "ngram", "auto"}

// DefaultTree is the number of nodes of the tree mode: about what a pass verifies at
// little more than the cost of a chain.
const DefaultTree = 24

// ModeOptions steer Modes.
type ModeOptions struct {
	Names     []string // nil: all that make sense
	Drafters  []string // sources with a model of their own; the modes chain and tree measure the first
	Max       int      // longest chain; 0: what the drafter can do
	Tree      int      // nodes of a tree; 0: DefaultTree
	Synthetic float64  // pretend this many tokens per pass; 0: verify
}

// Lacks says what a mode needs that is not there, "" if nothing.
func (o *ModeOptions) Lacks(mode string) string {
	switch {
	case mode == "mtp" && !slices.Contains(o.Drafters, mode):
		return "a layer for multi-token prediction"
	case mode == "eagle3" && !slices.Contains(o.Drafters, mode):
		return "an EAGLE-3 drafter"
	case (mode == "chain" || mode == "tree") && len(o.Drafters) == 0:
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
		case len(opt.Drafters) > 0:
			names = []string{"plain", "chain", "tree", "auto"}
			for i, d := range opt.Drafters {
				if i > 0 || d == "mtp" {
					names = append(names, d)
				}
			}
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
	first := ""
	if len(opt.Drafters) > 0 {
		first = opt.Drafters[0]
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
			o.Draft, o.Fixed, o.Tree = first, true, speculate.TreeOff
		case "tree":
			o.Draft, o.Fixed, o.Tree = first, true, tree
		case "ngram", "mtp", "eagle3":
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
