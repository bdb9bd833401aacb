// The public members of a wrapper don't include those that only the tree, the units and the states
// call.

import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { Module } from '@shardweave/nn';
import { expect, expectTypeOf, it } from 'vitest';

const SHOWN = [
  'appendSharedParam',
  'assertState',
  'at',
  'divideFactors',
  'get',
  'initialize',
  'groupCalls',
  'instances',
  'isRoot',
  'name',
  'noSync',
  'numericClasses',
  'processGroup',
  'replicateGroup',
  'reshard',
  'resetParameters',
  'toString',
  'trainingState',
  'units',
  'unwrap',
] as const;

it('has the members that programs call, and no others', () => {
  type Own = Exclude<keyof FullyShardedDataParallel, keyof Module>;
  expectTypeOf<Extract<Own, string>>().toEqualTypeOf<'module' | (typeof SHOWN)[number]>();
  const names = Object.getOwnPropertyNames(FullyShardedDataParallel.prototype);
  const ofModule = ['forward', ...Object.getOwnPropertyNames(Module.prototype)];
  expect(names.filter((name) => !ofModule.includes(name)).sort()).toEqual([...SHOWN].sort());
});
