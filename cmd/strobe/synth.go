package main

import (
	"errors"

	"github.com/spf13/cobra"
)

func newSynthCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "synth --shape NAME -o FILE",
		Short: "Write a model of random weights with the shape of a real one",
		RunE:  func(cmd *cobra.Command, args []string) error { return errors.New("not finished yet") },
	}
}
