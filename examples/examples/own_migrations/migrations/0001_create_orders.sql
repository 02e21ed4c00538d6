CREATE TABLE orders (id bigint PRIMARY KEY, confirmed boolean NOT NULL DEFAULT false);
INSERT INTO orders (id) VALUES (7), (8);
