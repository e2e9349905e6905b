// A map and slices, filled and read by goroutines while the collector runs. Argument: entries.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
)

type record struct {
	number int
	text   string
	next   *record
}

func text(number int) string { return "value " + strconv.Itoa(number*7) }

func main() {
	entries := 300000
	if len(os.Args) > 1 {
		entries, _ = strconv.Atoi(os.Args[1])
	}
	const parts = 4
	tables := make([]map[int]*record, parts)
	wrong := make([]int, parts)
	sums := make([]int, parts)
	var group sync.WaitGroup
	for part := 0; part < parts; part++ {
		group.Add(1)
		go func(part int) {
			defer group.Done()
			table := make(map[int]*record)
			var last *record
			for number := part; number < entries; number += parts {
				last = &record{number, text(number), last}
				table[number] = last
			}
			for number := part; number < entries; number += 3 * parts {
				delete(table, number)
			}
			runtime.GC()
			for number := range table {
				if table[number].text != text(number) {
					wrong[part]++
				}
				sums[part] += number
			}
			for ; last != nil; last = last.next {
				if last.text != text(last.number) {
					wrong[part]++
				}
			}
			tables[part] = table
		}(part)
	}
	group.Wait()
	count, sum, bad := 0, 0, 0
	for part := range tables {
		count += len(tables[part])
		sum += sums[part]
		bad += wrong[part]
	}
	fmt.Printf("%d entries, sum %d, wrong %d\n", count, sum, bad)
	if bad > 0 {
		os.Exit(1)
	}
}
