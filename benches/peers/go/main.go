// The usual Go consumer: fetch a message, one transaction with the dedup row and the change, commit
// the transaction, commit the offset. It says how long it took from its first event to its last.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"
)

type event struct {
	EventID   string `json:"event_id"`
	AccountID int64  `json:"account_id"`
	Amount    int64  `json:"amount"`
}

func main() {
	brokers, database, topic, group := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	count, err := strconv.Atoi(os.Args[5])
	check(err)
	ctx := context.Background()
	connection, err := pgx.Connect(ctx, database)
	check(err)
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{brokers}, GroupID: group, Topic: topic,
		StartOffset: kafka.FirstOffset, MaxBytes: 10e6,
	})

	var first time.Time
	for done := 0; done < count; done++ {
		message, err := reader.FetchMessage(ctx)
		check(err)
		if done == 0 {
			first = time.Now()
		}
		check(handle(ctx, connection, group, message.Value))
		check(reader.CommitMessages(ctx, message))
	}
	fmt.Printf("done %f\n", time.Since(first).Seconds())
}

func handle(ctx context.Context, connection *pgx.Conn, group string, value []byte) error {
	var e event
	if err := json.Unmarshal(value, &e); err != nil {
		return err
	}
	tx, err := connection.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	inserted, err := tx.Exec(ctx,
		"INSERT INTO processed_event (event_id, consumer_group) VALUES ($1, $2) ON CONFLICT DO NOTHING",
		e.EventID, group)
	if err != nil || inserted.RowsAffected() == 0 {
		return err
	}
	_, err = tx.Exec(ctx, "UPDATE account SET balance = balance + $1 WHERE id = $2", e.Amount, e.AccountID)
	if err != nil {
		return err
	}
	return tx.Commit(ctx)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
