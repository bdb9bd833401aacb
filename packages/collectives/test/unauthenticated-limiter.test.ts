// Every listener has a limiter. These tests check how many strangers it admits in a second, how
// many at a time, and for how long, and by what a job's limits are set.

import { EventEmitter } from 'node:events';
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { limitsFor } from '../src/sockets/limits.js';
import { securityOf } from '../src/sockets/listen-security.js';
import { maxOpenFiles } from '../src/sockets/max-open-files.js';
import { UnauthenticatedLimiter } from '../src/sockets/unauthenticated-limiter.js';

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['performance', 'setTimeout', 'clearTimeout'] });
});

afterEach(() => {
  vi.useRealTimers();
});

class Connection extends EventEmitter {
  readonly name: string;

  constructor(name: string) {
    super();
    this.name = name;
  }
}

function limiter(limits: { maxStrangers?: number; maxJoinsPerSecond?: number; proofMs?: number }) {
  const refused: string[] = [];
  const all = { maxStrangers: 3, maxJoinsPerSecond: 5, proofMs: 1000, ...limits };
  const entry = new UnauthenticatedLimiter<Connection>(all, (_, name, reason) => {
    refused.push(`${name}: ${reason}`);
  });
  const enter = (name: string, host = '10.0.0.1') => {
    const connection = new Connection(name);
    entry.enter(name, host, connection);
    return connection;
  };
  const inside = () => entry.unauthenticated().map(({ name }) => name);
  return { entry, enter, inside, refused };
}

describe('a gate', () => {
  it('sends the oldest away where too many are inside', () => {
    const { entry, enter, inside, refused } = limiter({ maxJoinsPerSecond: 100 });
    for (const name of ['a', 'b', 'c']) {
      enter(name);
    }
    entry.trust('a');
    enter('d');
    expect(refused).toEqual([]);
    enter('e');
    expect(refused).toEqual(['b: the oldest of 3 that had proved nothing']);
    expect(inside()).toEqual(['c', 'd', 'e']);
  });

  it('sends the oldest away of those who have most, and not who comes from elsewhere', () => {
    const { enter, inside, refused } = limiter({ maxStrangers: 4, maxJoinsPerSecond: 1000 });
    enter('rank 1', '10.0.0.2');
    for (let i = 0; i < 50; i++) {
      enter(`flood ${i}`, '10.0.0.9');
    }
    enter('rank 2', '10.0.0.3');
    expect(inside()).toEqual(['rank 1', 'flood 48', 'flood 49', 'rank 2']);
    expect(refused).toHaveLength(48);
    expect(refused[0]).toBe('flood 0: the oldest of 4 that had proved nothing');
  });

  it('refuses what has proved nothing in time, and nothing that has, or has gone', () => {
    const { entry, enter, inside, refused } = limiter({});
    enter('trusted');
    enter('slow'); // It is inside when the time of the trusted one is over.
    const gone = enter('gone');
    entry.trust('trusted');
    gone.emit('close');
    vi.advanceTimersByTime(999);
    expect(refused).toEqual([]);
    vi.advanceTimersByTime(1);
    expect(refused).toEqual(['slow: no proof within 1000 ms']);
    expect(inside()).toEqual([]);
  });

  it('lets in half as many a second of one address, so that others find some left', () => {
    const { enter, refused } = limiter({ maxStrangers: 100, maxJoinsPerSecond: 6 });
    for (let i = 0; i < 10; i++) {
      enter(`flood ${i}`, `2001:db8:0:1::${i}`);
    }
    expect(refused).toHaveLength(7);
    for (const host of ['10.0.0.1', '2001:db8:0:2::1', '::1']) {
      enter(host, host);
    }
    expect(refused).toHaveLength(7);
    enter('::2', '::2');
    expect(refused.at(-1)).toBe('::2: too many connections a second');
  });

  it('lets in so many a second, and no more after a long rest', () => {
    const { enter: enterOf, refused } = limiter({ maxStrangers: 100, proofMs: 10_000_000 });
    const enter = (name: string) => enterOf(name, name);
    vi.advanceTimersByTime(1_000_000);
    for (let i = 0; i < 8; i++) {
      enter(`early ${i}`);
    }
    const reason = 'too many connections a second';
    expect(refused).toEqual([5, 6, 7].map((i) => `early ${i}: ${reason}`));
    vi.advanceTimersByTime(400); // This is enough time for two tokens.
    for (let i = 0; i < 3; i++) {
      enter(`late ${i}`);
    }
    expect(refused.slice(3)).toEqual([`late 2: ${reason}`]);
  });
});

describe('the limits of a job', () => {
  it('grow with its ranks, and leave three quarters of the files that may be open', () => {
    expect(limitsFor(3)).toEqual({ maxStrangers: 76, maxJoinsPerSecond: 4120, proofMs: 5000 });
    expect(limitsFor(100)).toMatchObject({ maxStrangers: 464, maxJoinsPerSecond: 4896 });
    expect(limitsFor(100, {}, 1024).maxStrangers).toBe(256);
    expect(limitsFor(3, {}, 256).maxStrangers).toBe(64);
    expect(limitsFor(3, { maxStrangers: 9 }, 16).maxStrangers).toBe(9);
  });

  it('are those of this process', () => {
    const worldSize = 2 ** 30;
    const { limits } = securityOf({ secret: 'of this very test', worldSize });
    expect(limits).toEqual(limitsFor(worldSize, {}, maxOpenFiles()));
    const isTold = process.platform === 'linux';
    expect(limits!.maxStrangers < limitsFor(worldSize).maxStrangers).toBe(isTold);
  });

  it('know the files that may be open as the system tells them', () => {
    const folder = newFolder();
    const tell = (limit: string) => {
      const path = join(folder, 'limits');
      writeFileSync(
        path,
        `Max processes  7  9  processes\nMax open files   ${limit}   4096   files\n`,
      );
      return maxOpenFiles(path);
    };
    expect(tell('256')).toBe(256);
    expect(tell('unlimited')).toBe(Infinity);
    rmSync(folder, { recursive: true });
    expect(maxOpenFiles(join(folder, 'limits'))).toBe(Infinity);
  });
});
