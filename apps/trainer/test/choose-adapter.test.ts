// Which of a host's adapters a rank gets. The lists are made up, since no machine of ours has two
// cards; cards.test.ts has two real drivers.

import type { NodeAdapter } from '@shardweave/tensor-core/webgpu-node';
import { describe, expect, it } from 'vitest';
import { kindOf } from '../src/device-choice.js';
import { UsageError } from '../src/errors.js';
import { chooseAdapter } from '../src/rank/choose-adapter.js';

function adapter(device: string, more: Partial<NodeAdapter> = {}): NodeAdapter {
  return {
    ...{ name: `${device}, driver 550`, device, vendor: '', architecture: '', isSoftware: false },
    ...{ hasShaderF16: true, hasSubgroups: true, hasTimestamps: true },
    ...{ maxBufferBytes: 2 ** 31, maxBindingBytes: 2 ** 30, isReachable: true },
    ...more,
  };
}

const BIG = adapter('NVIDIA GeForce RTX 4090');
const SMALL = adapter('Intel UHD 770');
const SLOW = adapter('llvmpipe (LLVM 15)', { isSoftware: true });
const TWIN = adapter('NVIDIA GeForce RTX 4090', { isReachable: false });
const ALL = [BIG, SMALL, SLOW];

const chosen = (adapters: readonly NodeAdapter[], ranks: number, asked?: string) =>
  Array.from({ length: ranks }, (_, localRank) => chooseAdapter(adapters, { asked, localRank }));

describe('ranks of a host', () => {
  it('take turns among its cards, and leave drivers that compute on the CPU alone', () => {
    expect(chosen(ALL, 3)).toEqual([BIG, SMALL, BIG]);
  });

  it('take what Dawn prefers where there is one card, or none', () => {
    expect(chosen([BIG, SLOW], 2)).toEqual([undefined, undefined]);
    expect(chosen([SLOW], 2)).toEqual([undefined, undefined]);
    expect(chosen([], 1)).toEqual([undefined]);
  });

  it('leave out a card that Dawn does not open', () => {
    expect(chosen([BIG, TWIN, SMALL], 2)).toEqual([BIG, SMALL]);
    expect(chosen([BIG, TWIN], 2)).toEqual([undefined, undefined]);
  });
});

describe('an adapter that is asked for', () => {
  it.each([
    ['a part of its name in any case', 'uHd', SMALL],
    ['a part of its driver', 'RTX 4090, DRIVER', BIG],
    ['its name as headers have it', 'geforce-rtx-4090', BIG],
    ['its index', '1', SMALL],
    ['the index of a driver that computes on the CPU', '2', SLOW],
    ['a number that is no index but a part of its name', '4090', BIG],
  ])('is known by %s', (_, asked, expected) => {
    expect(chosen(ALL, 2, asked)).toEqual([expected, expected]);
  });

  it('may stand for several, among which ranks take turns', () => {
    const second = adapter('NVIDIA GeForce RTX 3060');
    expect(chosen([BIG, second, SMALL], 3, 'nvidia')).toEqual([BIG, second, BIG]);
  });

  it.each(['-1', '+4090', '(', '--'])('%s is neither an index nor a part of a name', (asked) => {
    expect(() => chosen(ALL, 1, asked)).toThrow(
      `--device webgpu:${asked}: expected an index or a part of a name`,
    );
  });

  it('an adapter that is not there is refused with a list of those that are', () => {
    const ask = () => chosen(ALL, 1, 'voodoo');
    expect(ask).toThrow(UsageError);
    expect(ask).toThrow(
      '--device webgpu:voodoo: expected an index or a part of a name of an adapter of this machine, which has 0: NVIDIA GeForce RTX 4090, driver 550; 1: Intel UHD 770, driver 550; 2: llvmpipe (LLVM 15), driver 550. "npm run doctor" lists them.',
    );
    expect(() => chosen([], 1, '0')).toThrow('of this machine, which has none.');
  });

  it('an adapter that Dawn does not open by its name is refused with what to do', () => {
    const ask = () => chosen([BIG, TWIN], 1, '1');
    expect(ask).toThrow(UsageError);
    expect(ask).toThrow(/got NVIDIA GeForce RTX 4090, .*whose name an adapter before it has, too/);
    expect(ask).toThrow(/Start the rank where it sees that card alone: docs\/several-gpus\.md\.$/);
  });
});

it('a choice of an adapter is one of WebGPU', () => {
  expect((['auto', 'cpu', 'webgpu', 'webgpu:1'] as const).map(kindOf)).toEqual(
    ['cpu', 'cpu', 'webgpu', 'webgpu'], // nobody has looked for a GPU yet
  );
});
