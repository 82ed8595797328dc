// Command runstage reads `go test -json` from stdin for one stage of a script and ends with
// code 1 when tests failed or when a package ran none: see package stage.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/berth-gpu/berth/hack/stage"
)

func main() {
	name := flag.String("name", "stage", "what the stage is called in its summary")
	pattern := flag.String("run", "", "the -run pattern that go test was given")
	verbose := flag.Bool("v", false, "print the output of the tests as it arrives")
	report := flag.String("report", "", "append the summary to this file too")
	flag.Parse()
	summary, err := stage.Read(os.Stdin, os.Stdout, stage.Options{Pattern: *pattern, Verbose: *verbose})
	line := fmt.Sprintf("%s: %s", *name, summary)
	if err != nil {
		line += ": FAILED: " + err.Error()
	}
	fmt.Println(line)
	for _, failure := range summary.Failures {
		fmt.Println("  " + failure)
		line += "\n  " + failure
	}
	if *report != "" {
		if reportErr := appendLine(*report, line); reportErr != nil {
			fmt.Fprintln(os.Stderr, reportErr)
			os.Exit(1)
		}
	}
	if err != nil {
		os.Exit(1)
	}
}

func appendLine(path, line string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("open report: %w", err)
	}
	_, err = fmt.Fprintln(file, line)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return err
}
