package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"strobe/internal/termtext"
)

func newPsCmd() *cobra.Command {
	var s serverFlags
	cmd := &cobra.Command{
		Use:   "ps [URL]",
		Short: "List the models that a running server has loaded",
		Long: `Ps asks a server ("strobe serve") which models are loaded, how much memory they take,
until when they stay, and how many guesses of each of their drafters were right.`,
		Example: `  strobe ps
  strobe ps 127.0.0.1:9000`,
		Args: positional("[URL]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := s.read(args); err != nil {
				return err
			}
			return ps(cmd, &s)
		},
	}
	s.add(cmd)
	return cmd
}

func ps(cmd *cobra.Command, s *serverFlags) error {
	server := s.server
	req, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, server+"/api/ps", nil)
	if err != nil {
		return usageError{err}
	}
	resp, err := s.do(&http.Client{Timeout: 10 * time.Second}, req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", server, resp.Status)
	}
	var list struct {
		Models []struct {
			Name    string
			Size    int64
			Expires time.Time              `json:"expires_at"`
			Sources map[string]checkSource `json:"draft_sources"`
		}
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&list); err != nil {
		return fmt.Errorf("%s: not an answer of strobe: %w", server, err)
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSIZE\tUNTIL\tDRAFTS ACCEPTED")
	for _, m := range list.Models {
		until := "the server ends"
		if left := time.Until(m.Expires); left > 0 && left < 1000*time.Hour { // servers that never unload say a date far away
			until = m.Expires.Local().Format("15:04")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", termtext.Printable(m.Name), formatBytes(m.Size), until,
			termtext.Printable(sourcesText(m.Sources)))
	}
	return w.Flush()
}

// sourcesText says how each source of drafts does: how many of its guesses were right, and what is wrong with it.
func sourcesText(sources map[string]checkSource) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		x := sources[name]
		s := fmt.Sprintf("%s %d of %d", name, x.Accepted, x.Guessed)
		if x.Drafts == 0 {
			s = name + " not asked"
		}
		if x.Bad > 0 {
			s += fmt.Sprintf(" (%d of %d drafts unusable)", x.Bad, x.Drafts)
		}
		if x.Failed > 0 {
			s += fmt.Sprintf(" (failed in %s)", count(x.Failed, "answer"))
		}
		all = append(all, s)
	}
	return strings.Join(all, ", ")
}
