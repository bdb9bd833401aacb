// Serves the page of a running command: to everyone who has the token it tells what has happened,
// and then what happens. It listens only on loopback, and changes nothing.

import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { UsageError } from '../errors.js';
import { DASHBOARD_PORT } from '../flags.js';
import type { RunHistory, RunRecord } from '../output/run-records.js';
import { PAGE_HTML } from '../page/index.html';
import { packSteps } from '../page/step-table.js';
import { describeSystemError } from '../system-error.js';
import { refusalOf } from './gate.js';
import { PrometheusText } from './prometheus.js';
import { tokenOf } from './token.js';

const HOST = '127.0.0.1';
/** A record takes some hundred bytes, so a reader that is this far behind has left. */
const BEHIND_BYTES = 32 * 2 ** 20;
/** The time that the last records may take to reach the readers. */
const GOODBYE_MS = 1000;

export interface DashboardOptions {
  /** The port. 'default': DASHBOARD_PORT, or any free port where another run uses that one. */
  readonly port: number | 'default';
  /** What a reader that comes late is told. */
  readonly history: RunHistory;
  readonly env: NodeJS.ProcessEnv;
}

export class Dashboard {
  readonly #server: Server;
  readonly #token: string;
  readonly #history: RunHistory;
  readonly #prometheus = new PrometheusText();
  readonly #listeners = new Set<ServerResponse>();

  private constructor(server: Server, token: string, history: RunHistory) {
    this.#server = server;
    this.#token = token;
    this.#history = history;
    for (const record of history.records()) {
      this.#prometheus.add(record);
    }
    server.on('request', (request, response) => this.#answer(request, response));
  }

  /** @throws {UsageError} where the port or the token can't be used */
  static async open({ port, history, env }: DashboardOptions): Promise<Dashboard> {
    const token = tokenOf(env);
    const server = await listen(port);
    return new Dashboard(server, token, history);
  }

  /** The address with the token in its fragment, which browsers don't send. */
  get url(): string {
    const { port } = this.#server.address() as AddressInfo;
    return `http://${HOST}:${port}/#token=${this.#token}`;
  }

  send(record: RunRecord): void {
    this.#prometheus.add(record);
    this.tell(record);
  }

  /** Shows what an earlier command has done, which this command's counters leave out. */
  tell(record: RunRecord): void {
    for (const response of this.#listeners) {
      if (response.writableLength > BEHIND_BYTES) {
        response.destroy();
      } else {
        response.write(eventText('record', record));
      }
    }
  }

  /** Lets the last records through, and stops listening. */
  async close(): Promise<void> {
    this.#server.close();
    const flushed = [...this.#listeners].map((response) => {
      response.end();
      return once(response, 'close');
    });
    const limit = new AbortController();
    await Promise.race([
      Promise.allSettled(flushed),
      delay(GOODBYE_MS, undefined, { signal: limit.signal }).catch(() => {}),
    ]);
    limit.abort();
    this.#server.closeAllConnections();
  }

  #answer(request: IncomingMessage, response: ServerResponse): void {
    for (const [name, value] of HEADERS) {
      response.setHeader(name, value);
    }
    const { pathname } = new URL(request.url ?? '/', 'http://loopback');
    // The page itself holds nothing of the run, and a browser asks for it without the token.
    const refusal = refusalOf(request, pathname === '/' ? undefined : this.#token);
    if (refusal !== undefined) {
      response.statusCode = refusal.status;
      response.setHeader('Content-Type', 'text/plain; charset=utf-8');
      response.end(`${refusal.reason}\n`);
      return;
    }
    switch (pathname) {
      case '/':
        response.setHeader('Content-Type', 'text/html; charset=utf-8');
        response.end(PAGE_HTML);
        return;
      case '/events':
        this.#listen(response);
        return;
      case '/metrics':
        response.setHeader('Content-Type', 'text/plain; version=0.0.4; charset=utf-8');
        response.end(this.#prometheus.text());
        return;
      default:
        response.statusCode = 404;
        response.end();
    }
  }

  #listen(response: ServerResponse): void {
    response.setHeader('Content-Type', 'text/event-stream; charset=utf-8');
    response.on('close', () => this.#listeners.delete(response));
    response.write(eventText('history', packSteps(this.#history.records())));
    this.#listeners.add(response);
  }
}

const HEADERS = [
  ['Cache-Control', 'no-store'],
  ['X-Content-Type-Options', 'nosniff'],
  ['Referrer-Policy', 'no-referrer'],
  ['Cross-Origin-Resource-Policy', 'same-origin'],
  ['Cross-Origin-Opener-Policy', 'same-origin'],
  // The page itself says which scripts it may run; only the header can forbid that it is framed.
  ['Content-Security-Policy', "frame-ancestors 'none'"],
] as const;

/** A message in the format of server-sent events. */
function eventText(name: 'history' | 'record', data: unknown): string {
  return `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
}

async function listen(port: number | 'default'): Promise<Server> {
  try {
    return await listenOn(port === 'default' ? DASHBOARD_PORT : port);
  } catch (cause) {
    if (port === 'default') {
      return listenOn(0);
    }
    throw new UsageError(
      `--dashboard: port ${port} can't be used (${describeSystemError(cause)}). Give another one, or none: then one that is free is taken.`,
      { cause },
    );
  }
}

function listenOn(port: number): Promise<Server> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', reject);
    server.listen(port, HOST, () => resolve(server));
  });
}
