package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"strobe/internal/hub"
)

func newPullCmd() *cobra.Command {
	var token, endpoint, cache string
	cmd := &cobra.Command{
		Use:   "pull OWNER/REPO[:FILE]",
		Short: "Download a model from the Hugging Face hub",
		Long: `Download a model from the Hugging Face hub and print its path.

Without FILE the repository's ` + hub.DefaultType + ` file is fetched, or its only GGUF file;
where that leaves a choice, the choices are listed. FILE is a file name in the
repository or just a type such as Q8_0. All parts of a split file are fetched.
A repository without GGUF files is fetched as a checkpoint folder for
"strobe convert". OWNER/REPO@REVISION:FILE takes a branch, tag or commit.

Files go to the cache that the Python tools of the hub use, so nothing is
fetched twice. A download that was cut off goes on where it stopped, and every
file is checked against the hub's hash.

Environment: HF_TOKEN (access token for private or gated models), HF_HOME or
HF_HUB_CACHE (where the cache is), HF_ENDPOINT (another hub), HF_HUB_OFFLINE=1
(use the cache only).`,
		Example: `  strobe pull Qwen/Qwen3-0.6B-GGUF              the default file
  strobe pull Qwen/Qwen3-0.6B-GGUF:Q8_0         by type
  strobe inspect "$(strobe pull -q Qwen/Qwen3-0.6B-GGUF:Q8_0)"`,
		Args: positional("OWNER/REPO"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := hub.ParseRef(args[0]); err != nil {
				return usageError{err}
			}
			c, err := hub.FromEnv()
			if err != nil {
				return err
			}
			if endpoint != "" {
				c.Endpoint = endpoint
			}
			if cache != "" {
				c.Cache = cache
			}
			if token != "" {
				c.Token = token
			}
			return runPull(cmd, c, args[0])
		},
	}
	cmd.Flags().StringVar(&endpoint, "endpoint", "",
		"address of the hub (default $HF_ENDPOINT or "+hub.DefaultEndpoint+")")
	cmd.Flags().StringVar(&cache, "cache", "", "cache folder (default $HF_HUB_CACHE or $HF_HOME/hub)")
	cmd.Flags().StringVar(&token, "token", "", "access token (default $HF_TOKEN)")
	return cmd
}

func runPull(cmd *cobra.Command, c *hub.Client, ref string) error {
	plan, err := c.Resolve(cmd.Context(), ref)
	if err != nil {
		return err
	}
	infof(cmd, "%s: %s, commit %.12s", plan.Ref.Repo, describeFiles(plan.Files), plan.Commit)
	p := newProgress(cmd, "pull", plan.Size())
	var done int64
	path, err := c.Pull(cmd.Context(), plan, func(s hub.Progress) {
		p.Add(s.Done - done)
		done = s.Done
	})
	if err != nil {
		p.Stop()
		return err
	}
	p.Finish()
	fmt.Fprintln(cmd.OutOrStdout(), path)
	return nil
}

func describeFiles(files []hub.File) string {
	var total int64
	for _, f := range files {
		total += f.Size
	}
	if len(files) == 1 {
		return fmt.Sprintf("%s (%s)", files[0].Name, formatBytes(total))
	}
	return fmt.Sprintf("%s and %d more (%s)", files[0].Name, len(files)-1, formatBytes(total))
}
