// A TCP proxy for tests: what goes through it is delayed, slowed down, silently stalled, or cut. It
// knows nothing of what it carries.

import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { SeededRandom } from '../simulator/seeded-random.js';
import { DelayLine, type LinkShape } from './delay-line.js';

/** A host and a TCP port. */
export interface ProxyAddress {
  readonly host: string;
  readonly port: number;
}

/** The options of `TcpProxy.listen`: the target, the address, and the shape of each direction. */
export interface TcpProxyOptions extends LinkShape {
  /** The address that connections go on to. */
  readonly target: ProxyAddress;
  /** The address on which it listens. Default: 127.0.0.1. */
  readonly host?: string;
  /** The seed of the jitter. Default: 1. */
  readonly seed?: number;
}

interface Connection {
  readonly sockets: readonly [Socket, Socket];
  readonly lines: readonly [DelayLine, DelayLine];
}

/**
 * A TCP proxy for tests. What goes through it can be delayed, slowed down, stalled in silence, or
 * cut by a reset.
 */
export class TcpProxy implements AsyncDisposable {
  readonly #target: ProxyAddress;
  readonly #server: Server;
  readonly #random: SeededRandom;
  readonly #connections = new Set<Connection>();
  #shape: LinkShape;
  #isStalled = false;
  #bytesPassed = 0;

  private constructor(options: TcpProxyOptions) {
    this.#target = options.target;
    this.#shape = options;
    this.#random = new SeededRandom(options.seed ?? 1);
    this.#server = createServer({ allowHalfOpen: true }, (socket) => this.#accept(socket));
  }

  /** Resolves when it listens, on a free port. */
  static async listen(options: TcpProxyOptions): Promise<TcpProxy> {
    const proxy = new TcpProxy(options);
    proxy.#server.listen(0, options.host ?? '127.0.0.1');
    await once(proxy.#server, 'listening');
    return proxy;
  }

  /** The address to connect to instead of the target. */
  get address(): ProxyAddress {
    const { address, port } = this.#server.address() as AddressInfo;
    return { host: address, port };
  }

  /** The bytes of both directions together. */
  get bytesPassed(): number {
    return this.#bytesPassed;
  }

  get numConnections(): number {
    return this.#connections.size;
  }

  /** Changes delay, jitter and rate for what comes in from now on. */
  reshape(shape: LinkShape): void {
    this.#shape = shape;
    this.#eachLine((line) => line.reshape(shape));
  }

  /** Stops everything silently: connections stay open, and new ones hang. */
  stall(): void {
    this.#isStalled = true;
    this.#eachLine((line) => line.stall());
  }

  /** Lets what was held up go on. */
  resume(): void {
    this.#isStalled = false;
    this.#eachLine((line) => line.resume());
  }

  /** Breaks all connections with a reset, as a crash of the machine between would. */
  cut(): void {
    for (const connection of [...this.#connections]) {
      this.#drop(connection);
    }
  }

  /** Cuts all connections, and stops listening. */
  async close(): Promise<void> {
    this.cut();
    this.#server.close();
    await once(this.#server, 'close');
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #accept(inner: Socket): void {
    const outer = connect({ ...this.#target, allowHalfOpen: true });
    const options = {
      shape: this.#shape,
      random: this.#random,
      onBytes: (byteLength: number) => {
        this.#bytesPassed += byteLength;
      },
    };
    const connection: Connection = {
      sockets: [inner, outer],
      lines: [new DelayLine(inner, outer, options), new DelayLine(outer, inner, options)],
    };
    this.#connections.add(connection);
    for (const socket of connection.sockets) {
      socket.setNoDelay(true);
      socket.on('error', () => this.#drop(connection));
    }
    // A connection that ended in peace closes when both its ends have closed.
    let numOpen = 2;
    for (const socket of connection.sockets) {
      socket.on('close', () => {
        numOpen--;
        if (numOpen === 0) {
          this.#drop(connection);
        }
      });
    }
    if (this.#isStalled) {
      for (const line of connection.lines) {
        line.stall();
      }
    }
  }

  #drop(connection: Connection): void {
    this.#connections.delete(connection);
    for (const line of connection.lines) {
      line.close();
    }
    for (const socket of connection.sockets) {
      if (!socket.destroyed) {
        socket.resetAndDestroy();
      }
    }
  }

  #eachLine(visit: (line: DelayLine) => void): void {
    for (const { lines } of this.#connections) {
      lines.forEach(visit);
    }
  }
}
