// A machine that sleeps stops all its ranks and their timers, and wakes them with late clocks. All
// of them survive; a rank that doesn't wake up with the others is found missing.

import type { TransportListener } from '@shardweave/collectives';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import type { WireHandler, WireSocket } from '../src/sockets/wire-socket.js';
import { Pulse } from '../src/transports/ws/heartbeat/pulse.js';
import { WsLink } from '../src/transports/ws/link/ws-link.js';
import { WsTransport } from '../src/transports/ws/link/ws-transport.js';

const WORLD_SIZE = 3;
const HEARTBEAT_MS = 250;
const SILENCE_MS = 4000;
const SLEEP_MS = 7000;

let nowMs = 0;

beforeEach(() => {
  nowMs = 0;
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  vi.spyOn(performance, 'now').mockImplementation(() => nowMs);
});

afterEach(() => {
  vi.restoreAllMocks();
  vi.useRealTimers();
});

/**
 * Makes three ranks that hear each other over their links. The test moves the time and delivers the
 * messages.
 */
function watchingRanks() {
  const wire: (() => void)[] = [];
  const lost: string[] = [];
  const ticks: (() => void)[] = [];
  vi.spyOn(globalThis, 'setInterval').mockImplementation(((tick: () => void) => {
    ticks.push(tick);
    return { unref: () => {} };
  }) as unknown as typeof setInterval);
  const transports = Array.from({ length: WORLD_SIZE }, (_, rank) => {
    const listener = {
      onControl: () => {},
      onPeerLost: (peer: number, reason: string) => lost.push(`${rank} lost ${peer}: ${reason}`),
    } as Partial<TransportListener> as TransportListener;
    return new WsTransport({ listener, rank, worldSize: WORLD_SIZE, heartbeatMs: HEARTBEAT_MS });
  });
  for (const [a, b] of [
    [0, 1],
    [0, 2],
    [1, 2],
  ] as const) {
    const [first, second] = socketPair(wire);
    transports[a]!.addLink(new WsLink(first, b, transports[a]!));
    transports[b]!.addLink(new WsLink(second, a, transports[b]!));
  }
  for (const transport of transports) {
    transport.formed(() => ({ silenceMs: SILENCE_MS, saysAlive: true }));
  }
  /** Fires the timers of these ranks, before they read anything that has arrived. */
  const tick = (...ranks: readonly number[]) => {
    for (const rank of ranks) {
      ticks[rank]!();
    }
  };
  const deliver = () => {
    for (const arrive of wire.splice(0)) {
      arrive();
    }
  };
  return { tick, deliver, lost };
}

function socketPair(wire: (() => void)[]): [WireSocket, WireSocket] {
  const handlers: (WireHandler | undefined)[] = [];
  const end = (own: number): WireSocket => ({
    unsentBytes: 0,
    setHandler: (handler) => {
      handlers[own] = handler;
    },
    sendText: (text) => wire.push(() => handlers[1 - own]?.onText(text)),
    trust: () => {},
    send: () => {},
    batch: (body) => body(),
    close: () => {},
    terminate: () => {},
  });
  return [end(0), end(1)];
}

const ALL = [0, 1, 2];

it('ranks that sleep and wake together live on, though one is up to 750 ms ahead of the others', () => {
  const { tick, deliver, lost } = watchingRanks();
  for (let i = 0; i < 20; i++) {
    nowMs += HEARTBEAT_MS;
    tick(...ALL);
    deliver();
  }
  nowMs += HEARTBEAT_MS;
  tick(...ALL); // These beats are on their way when the machine falls asleep.
  nowMs += SLEEP_MS;
  for (let i = 0; i < 3; i++) {
    tick(0);
    nowMs += HEARTBEAT_MS;
  }
  tick(1, 2);
  for (let i = 0; i < 20; i++) {
    deliver();
    nowMs += HEARTBEAT_MS;
    tick(...ALL);
  }
  vi.advanceTimersByTime(10_000);
  expect(lost).toEqual([]);
});

it('a rank that does not wake up is missed by the others, and not before they have listened', () => {
  const { tick, deliver, lost } = watchingRanks();
  tick(...ALL);
  deliver();
  tick(...ALL);
  nowMs += SLEEP_MS;
  for (let i = 0; i < 2; i++) {
    tick(0, 1);
    deliver();
    nowMs += HEARTBEAT_MS;
  }
  vi.advanceTimersByTime(1000);
  expect(lost).toEqual([]);
  for (let i = 0; i < 20; i++) {
    tick(0, 1);
    deliver();
    nowMs += HEARTBEAT_MS;
  }
  vi.advanceTimersByTime(1000);
  expect(lost).toEqual([0, 1].map((rank) => `${rank} lost 2: silent for ${SILENCE_MS} ms`));
});

it('a silence begins with the last word, not with the watch', () => {
  const pulse = new Pulse(SILENCE_MS, 0);
  expect(pulse.isLost(true, 2 * SILENCE_MS)).toBe(false);
  const ticks = [1, 2, 3, 4, 5].map((i) => pulse.isLost(false, 2 * SILENCE_MS + i));
  expect(ticks).toEqual([false, false, false, false, false]);
  expect(pulse.isLost(false, 3 * SILENCE_MS + 1)).toBe(true);
});
