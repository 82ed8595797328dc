package e2e

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// The size of the browser's window.
const (
	windowWidth  = 1100
	windowHeight = 800
)

// browser is a headless Chromium.
type browser struct {
	ctx context.Context

	mu       sync.Mutex
	requests []string
}

// startBrowser starts the Chromium of the distribution until the test ends.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("%v; apt-get install chromium", err)
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WindowSize(windowWidth, windowHeight), chromedp.UserDataDir(t.TempDir()),
		// Chromium looks for updates and the like of its own accord.
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"), chromedp.WSURLReadTimeout(2*time.Minute))
	allocator, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	b := &browser{ctx: ctx}
	if err := chromedp.Listen(ctx, func(event any) {
		if sent, is := event.(*network.EventRequestWillBeSent); is {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.requests = append(b.requests, sent.Request.URL)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	b.do(t, chromedp.EmulateViewport(windowWidth, windowHeight))
	return b
}

// do runs actions.
func (b *browser) do(t *testing.T, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

// resultOf runs an action and returns its result.
func resultOf[T any](t *testing.T, b *browser, action chromedp.Action[T]) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	got, err := chromedp.Run(ctx, action)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// evaluate returns the value of an expression of JavaScript.
func evaluate[T any](t *testing.T, b *browser, expression string) T {
	t.Helper()
	return resultOf(t, b, chromedp.Evaluate[T](expression))
}

// open opens an address.
func (b *browser) open(t *testing.T, address string) {
	t.Helper()
	b.do(t, chromedp.Navigate(address), chromedp.WaitReady("h1"))
}

// disableScripts switches the scripts of pages off, or on again.
func (b *browser) disableScripts(t *testing.T, off bool) {
	t.Helper()
	if _, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: off}); err != nil {
		t.Fatal(err)
	}
}

// waitFor waits until an expression of JavaScript is true.
func (b *browser) waitFor(t *testing.T, limit time.Duration, what, expression string) {
	t.Helper()
	waitUntil(t, limit, what, func(context.Context) error {
		if !evaluate[bool](t, b, "Boolean("+expression+")") {
			return errors.New("it is not so")
		}
		return nil
	})
}

// screenshot writes a picture of the whole page.
func (b *browser) screenshot(t *testing.T, name string) {
	t.Helper()
	dir := os.Getenv(envScreenshots)
	if dir == "" {
		dir = t.TempDir()
	}
	picture := resultOf(t, b, chromedp.FullScreenshot(100))
	if err := os.WriteFile(filepath.Join(dir, name), picture, 0o644); err != nil {
		t.Fatal(err)
	}
}

// checkRequests checks that all requests of the pages were for some origins.
func (b *browser) checkRequests(t *testing.T, origins ...string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, request := range b.requests {
		if parsed, err := url.Parse(request); err != nil || !slices.Contains(origins, parsed.Scheme+"://"+parsed.Host) {
			t.Errorf("a page requested %s", request)
		}
	}
	t.Logf("%d requests, all for %v", len(b.requests), origins)
}
