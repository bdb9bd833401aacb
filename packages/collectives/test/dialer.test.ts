// How a rank that dials in vain says why, by a clock that only the tests move.
import { expect, it } from 'vitest';
import { OpenError } from '../src/sockets/socket-platform.js';
import { Dialer } from '../src/transports/ws/join/dialer.js';

it('a join that ends names what it met, and not that its last millisecond was too short', async () => {
  let now = 0;
  const clock = {
    now: () => now,
    setTimer: (ms: number, then: () => void) => {
      now += ms;
      queueMicrotask(then);
    },
  };
  const limits: number[] = [];
  const sockets = {
    maxRetryMs: 100,
    listen: () => {},
    open: async (_url: string, limitMs: number) => {
      limits.push(limitMs);
      throw new OpenError(limitMs === 1 ? 'too late' : 'nobody listens', { isEarly: true });
    },
  };
  const options = {
    ...{ clock, joinTimeoutMs: 120, proofMs: 1000, rank: 1, worldSize: 2 },
    route: (_target: unknown, address: unknown) => address,
    schemeTo: () => 'ws',
  };
  const dialer = new Dialer(options as never, sockets as never, () => false);
  const address = { host: '127.0.0.1', port: 1 };
  await expect(dialer.open('rendezvous', address)).rejects.toThrow(/\(nobody listens\)/);
  expect(limits.at(-1)).toBe(1);
});
