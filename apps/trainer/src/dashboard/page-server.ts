// Serves a page, and streams of events for it, on loopback, to whoever has the token. Any user of
// the machine, and any page in its browsers, can connect: so it reads one bounded request of each
// connection, and nothing that comes over one may end the command that serves.

import { once } from 'node:events';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { parseHead, type ReadHead, readHead } from '@shardweave/collectives/http-head';
import { UsageError } from '../errors.js';
import { DASHBOARD_PORT } from '../flags/train-flags.js';
import { PAGE_HTML } from '../page/index.html';
import { describeSystemError } from '../system-error.js';
import { type Refusal, refusalOf } from './gate.js';
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

/** Somebody with the token who hears events until the connection ends. */
export interface Reader {
  /** Sends an event; a reader that is too far behind is dropped. */
  send(name: string, data: unknown): void;
}

/** What is behind the gate. */
export interface Served {
  /** A text for a path such as /metrics; undefined where there is none. */
  text?(path: string): { readonly type: string; readonly text: string } | undefined;
  /** Greets a reader of /events, who asks with what is behind `?`. */
  onReader(reader: Reader, query: URLSearchParams): void;
  onLeft(reader: Reader): void;
}

export interface PageServerOptions {
  /** The port. 'default': DASHBOARD_PORT, or any free port where another run uses that one. */
  readonly port: number | 'default';
  readonly env: NodeJS.ProcessEnv;
  /** The flag that the port was typed with. */
  readonly flag: string;
}

export class PageServer {
  readonly #server: Server;
  readonly #token: string;
  readonly #served: Served;
  /** The connections that have shown no token, or asked for something that ends. */
  readonly #guests = new Set<Socket>();
  readonly #listeners = new Set<Socket>();

  private constructor(server: Server, token: string, served: Served) {
    this.#server = server;
    this.#token = token;
    this.#served = served;
    server.on('connection', (socket) => this.#onConnection(socket));
    server.on('error', () => {}); // a connection that can't be accepted is nobody's concern
  }

  /** @throws {UsageError} where the port or the token can't be used */
  static async open(served: Served, options: PageServerOptions): Promise<PageServer> {
    const token = tokenOf(options.env);
    const server = await listen(options);
    return new PageServer(server, token, served);
  }

  /** The address with the token in its fragment, which browsers don't send. */
  get url(): string {
    const { port } = this.#server.address() as AddressInfo;
    return `http://${HOST}:${port}/#token=${this.#token}`;
  }

  /** Lets the last events through, and stops listening. */
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
    const [path = '', query] = target!.split('?');
    // The page itself holds nothing of the run, and a browser asks for it without the token.
    const refusal = refusalOf(method, request.headers, path === '/' ? undefined : this.#token);
    if (refusal !== undefined) {
      refuse(socket, refusal);
      return;
    }
    if (path === '/') {
      end(socket, 200, 'text/html', PAGE_HTML);
    } else if (path === '/events') {
      this.#listen(socket, new URLSearchParams(query));
    } else {
      const found = this.#served.text?.(path);
      end(socket, found ? 200 : 404, found?.type ?? 'text/plain', found?.text ?? '');
    }
  }

  #listen(socket: Socket, query: URLSearchParams): void {
    this.#guests.delete(socket);
    enter(this.#listeners, socket, MAX_LISTENERS);
    socket.resume(); // the end of a reader is read, too
    socket.write(headText(200, 'text/event-stream'));
    const reader = {
      send: (name: string, data: unknown) => {
        if (socket.writableLength > BEHIND_BYTES) {
          socket.destroy();
        } else {
          socket.write(eventText(name, data));
        }
      },
    };
    socket.once('close', () => this.#served.onLeft(reader));
    this.#served.onReader(reader, query);
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
function eventText(name: string, data: unknown): string {
  return `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
}

async function listen({ port, flag }: PageServerOptions): Promise<Server> {
  try {
    return await listenOn(port === 'default' ? DASHBOARD_PORT : port);
  } catch (cause) {
    if (port === 'default') {
      return listenOn(0);
    }
    throw new UsageError(
      `${flag}: port ${port} can't be used (${describeSystemError(cause)}). Give another one, or none: then one that is free is taken.`,
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
