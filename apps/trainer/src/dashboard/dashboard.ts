// Serves the page of a running command: to everyone who has the token it tells what has happened,
// and then what happens. It listens only on loopback, and changes nothing. Any user of the machine,
// and any page in its browsers, can connect: so it reads one bounded request of each connection,
// and nothing that comes over one may end the training.

import { once } from 'node:events';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { parseHead, type ReadHead, readHead } from '@shardweave/collectives/http-head';
import { UsageError } from '../errors.js';
import { DASHBOARD_PORT } from '../flags/train-flags.js';
import type { RunHistory, RunRecord } from '../output/run-records.js';
import { PAGE_HTML } from '../page/index.html';
import { packSteps } from '../page/step-table.js';
import { describeSystemError } from '../system-error.js';
import { type Refusal, refusalOf } from './gate.js';
import { PrometheusText } from './prometheus.js';
import { tokenOf } from './token.js';

const HOST = '127.0.0.1';
/** A record takes some hundred bytes, so a reader that is this far behind has left. */
const BEHIND_BYTES = 32 * 2 ** 20;
/** A browser sends its cookies for localhost along, which fit. */
const REQUEST_BYTES = 16 * 1024;
/** The connections that have no stream of records; above them the oldest is dropped. */
const MAX_GUESTS = 64;
/** The time for a request and its answer, which may take a while through a tunnel. */
const GUEST_MS = 30_000;
/** The readers of the stream, who have the token; above them the oldest is dropped. */
const MAX_LISTENERS = 16;
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
  /** The connections that have shown no token, or asked for something that ends. */
  readonly #guests = new Set<Socket>();
  readonly #listeners = new Set<Socket>();

  private constructor(server: Server, token: string, history: RunHistory) {
    this.#server = server;
    this.#token = token;
    this.#history = history;
    for (const record of history.records()) {
      this.#prometheus.add(record);
    }
    server.on('connection', (socket) => this.#onConnection(socket));
    server.on('error', () => {}); // a connection that can't be accepted is nobody's concern
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
    for (const socket of this.#listeners) {
      if (socket.writableLength > BEHIND_BYTES) {
        socket.destroy();
      } else {
        socket.write(eventText('record', record));
      }
    }
  }

  /** Lets the last records through, and stops listening. */
  async close(): Promise<void> {
    this.#server.close();
    const flushed = [...this.#listeners].map((socket) => {
      socket.end();
      return once(socket, 'close');
    });
    const limit = new AbortController();
    await Promise.race([
      Promise.allSettled(flushed),
      delay(GOODBYE_MS, undefined, { signal: limit.signal }).catch(() => {}),
    ]);
    limit.abort();
    for (const socket of [...this.#guests, ...this.#listeners]) {
      socket.destroy();
    }
  }

  #onConnection(socket: Socket): void {
    enter(this.#guests, socket, MAX_GUESTS);
    const timer = setTimeout(() => {
      if (this.#guests.has(socket)) {
        socket.destroy();
      }
    }, GUEST_MS);
    socket.on('error', () => {});
    socket.on('close', () => {
      clearTimeout(timer);
      this.#guests.delete(socket);
      this.#listeners.delete(socket);
    });
    readHead(socket, { start: '', maxBytes: REQUEST_BYTES }, (head) => {
      try {
        this.#answer(socket, head);
      } catch {
        socket.destroy();
      }
    });
  }

  #answer(socket: Socket, head: ReadHead): void {
    const request = typeof head === 'string' ? undefined : parseHead(head.text);
    const [, method, target] = /^([A-Z]+) (\S+) HTTP\/1\.[01]$/.exec(request?.line ?? '') ?? [];
    if (request === undefined || method === undefined) {
      refuse(socket, { status: 400, reason: 'expected a request of HTTP/1.1' });
      return;
    }
    const [path] = target!.split('?');
    // The page itself holds nothing of the run, and a browser asks for it without the token.
    const refusal = refusalOf(method, request.headers, path === '/' ? undefined : this.#token);
    if (refusal !== undefined) {
      refuse(socket, refusal);
      return;
    }
    switch (path) {
      case '/':
        end(socket, 200, 'text/html', PAGE_HTML);
        return;
      case '/events':
        this.#listen(socket);
        return;
      case '/metrics':
        end(socket, 200, 'text/plain; version=0.0.4', this.#prometheus.text());
        return;
      default:
        end(socket, 404, 'text/plain', '');
    }
  }

  #listen(socket: Socket): void {
    this.#guests.delete(socket);
    enter(this.#listeners, socket, MAX_LISTENERS);
    socket.resume(); // the end of a reader is read, too
    socket.write(headText(200, 'text/event-stream'));
    socket.write(eventText('history', packSteps(this.#history.records())));
  }
}

/** Adds a connection, for which the oldest has to go where there are too many. */
function enter(sockets: Set<Socket>, socket: Socket, max: number): void {
  sockets.add(socket);
  if (sockets.size > max) {
    const [oldest] = sockets;
    sockets.delete(oldest!);
    oldest!.destroy();
  }
}

function refuse(socket: Socket, { status, reason }: Refusal): void {
  end(socket, status, 'text/plain', `${reason}\n`);
}

/** Answers, and ends the connection when that is sent, whatever else has come over it. */
function end(socket: Socket, status: Status, type: string, text: string): void {
  socket.once('finish', () => socket.destroy());
  socket.end(headText(status, type, Buffer.byteLength(text)) + text);
}

const STATUS_TEXTS = {
  200: 'OK',
  400: 'Bad Request',
  401: 'Unauthorized',
  403: 'Forbidden',
  404: 'Not Found',
  405: 'Method Not Allowed',
} as const;

type Status = keyof typeof STATUS_TEXTS;

/** The head of an answer; without a length it goes on until the connection ends. */
function headText(status: Status, type: string, byteLength?: number): string {
  const length = byteLength === undefined ? [] : [['Content-Length', String(byteLength)]];
  const headers = [...HEADERS, ['Content-Type', `${type}; charset=utf-8`], ...length];
  const lines = headers.map(([name, value]) => `${name}: ${value}\r\n`).join('');
  return `HTTP/1.1 ${status} ${STATUS_TEXTS[status]}\r\n${lines}\r\n`;
}

const HEADERS = [
  ['Connection', 'close'],
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
