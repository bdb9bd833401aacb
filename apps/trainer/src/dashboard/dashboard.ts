// Shows a running command: to everyone who has the token it tells what has happened, and then what
// happens. It changes nothing.

import type { RunHistory } from '../output/run-history.js';
import type { RunRecord } from '../output/run-records.js';
import { PageServer, type PageServerOptions, type Reader } from './page-server.js';
import { PrometheusText } from './prometheus.js';

export interface DashboardOptions extends Pick<PageServerOptions, 'port' | 'env'> {
  /** What a reader that comes late is told. */
  readonly history: RunHistory;
}

export class Dashboard {
  readonly #server: PageServer;
  readonly #readers: Set<Reader>;
  readonly #prometheus: PrometheusText;

  private constructor(server: PageServer, readers: Set<Reader>, prometheus: PrometheusText) {
    this.#server = server;
    this.#readers = readers;
    this.#prometheus = prometheus;
  }

  /** @throws {UsageError} where the port or the token can't be used */
  static async open({ port, history, env }: DashboardOptions): Promise<Dashboard> {
    const readers = new Set<Reader>();
    const prometheus = new PrometheusText();
    for (const record of history.records()) {
      if (record.type !== 'steps') {
        prometheus.add(record); // the steps are those of earlier commands
      }
    }
    const served = {
      text: (path: string) =>
        path === '/metrics'
          ? { type: 'text/plain; version=0.0.4', text: prometheus.text() }
          : undefined,
      onReader: (reader: Reader) => {
        readers.add(reader);
        reader.send('history', history.records());
      },
      onLeft: (reader: Reader) => {
        readers.delete(reader);
      },
    };
    const server = await PageServer.open(served, { port, env, flag: '--dashboard' });
    return new Dashboard(server, readers, prometheus);
  }

  /** The address with the token in its fragment. */
  get url(): string {
    return this.#server.url;
  }

  send(record: RunRecord): void {
    this.#prometheus.add(record);
    this.tell(record);
  }

  /** Shows what an earlier command has done, which this command's counters leave out. */
  tell(record: RunRecord): void {
    for (const reader of this.#readers) {
      reader.send('record', record);
    }
  }

  /** Lets the last records through, and stops listening. */
  close(): Promise<void> {
    return this.#server.close();
  }
}
