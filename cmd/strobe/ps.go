package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

func newPsCmd() *cobra.Command {
	var server, key string
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the models that a running server has loaded",
		Long: `Ps asks a server ("strobe serve") which models are loaded, how much memory they take
and until when they stay.`,
		Example: `  strobe ps
  strobe ps --server http://127.0.0.1:9000`,
		Args: positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if key == "" {
				key = os.Getenv(keyVariable)
			}
			return ps(cmd, strings.TrimSuffix(server, "/"), key)
		},
	}
	cmd.Flags().StringVar(&server, "server", "http://127.0.0.1:8080", "address of the server")
	cmd.Flags().StringVar(&key, "api-key", "", "its key (default $"+keyVariable+")")
	return cmd
}

func ps(cmd *cobra.Command, server, key string) error {
	req, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, server+"/api/ps", nil)
	if err != nil {
		return usageError{err}
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := (&http.Client{Timeout: 10 * time.Second}).Do(req)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("no server answers at %s; \"strobe serve\" starts one", server)
	}
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
			Expires time.Time `json:"expires_at"`
		}
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&list); err != nil {
		return fmt.Errorf("%s: not an answer of strobe: %w", server, err)
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSIZE\tUNTIL")
	for _, m := range list.Models {
		until := "the server ends"
		if left := time.Until(m.Expires); left > 0 && left < 1000*time.Hour { // servers that never unload say a date far away
			until = m.Expires.Local().Format("15:04")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", m.Name, formatBytes(m.Size), until)
	}
	return w.Flush()
}
