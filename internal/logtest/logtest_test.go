package logtest_test

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/sublet-dev/agent/internal/logtest"
)

func ExampleBuffer() {
	var (
		log    logtest.Buffer
		wg     sync.WaitGroup
		logger = slog.New(slog.NewTextHandler(&log, nil))
	)
	for range 10 {
		wg.Go(func() { logger.Info("pod synced") })
	}
	_ = log.String() // at any time
	wg.Wait()
	fmt.Println(strings.Count(log.String(), "pod synced"))
	log.Reset()
	fmt.Println(len(log.String()))
	// Output:
	// 10
	// 0
}

func ExampleNewLogger() {
	logger := logtest.NewLogger(os.Stdout, slog.LevelInfo)
	logger.Info("pod synced", slog.String("pod", "default/web"))
	logger.Debug("pod unchanged")
	// Output: level=INFO msg="pod synced" pod=default/web
}
