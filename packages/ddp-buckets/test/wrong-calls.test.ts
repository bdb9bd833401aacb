// What programs in plain JavaScript get wrong where they wrap, and in calls beside: each is told
// what was expected, what came and what to write.

import {
  compressionHook,
  DdpConfigError,
  DistributedDataParallel,
  powerSgdHook,
} from '@shardweave/ddp-buckets';
import { naiveAllReduce, Reducer } from '@shardweave/ddp-buckets/apex';
import { packParameters } from '@shardweave/nn';
import { expect, it } from 'vitest';
import { loose, refusal } from '../../../tooling/test-kit/index.ts';
import { Bag, type Rank, wrap } from './support/ranks.js';

const bag = ({ device }: Rank) => new Bag(device, { a: 3 });

const options = loose({ gradient_average: true, colour: 1 });

it.each<[string, (rank: Rank) => unknown]>([
  ['ddp.syncParameters', (rank) => wrap(bag(rank), rank).syncParameters(options)],
  ['ddp.syncBuffers', (rank) => wrap(bag(rank), rank).syncBuffers(options)],
  ['ddp.join', (rank) => wrap(bag(rank), rank).join(async () => {}, options)],
  ['compressionHook', () => compressionHook(options)],
  ['powerSgdHook', () => powerSgdHook(options)],
  ['naiveAllReduce', () => naiveAllReduce([], options)],
  ['reducer', (rank) => new Reducer(bag(rank), options)],
])('an unknown option of %s is refused by its name', async (name, call) => {
  expect(await refusal(DdpConfigError, call)).toContain(
    `${name}: expected known options, got 'gradient_average'`,
  );
});

it.each([
  ['mesh', 'Use processGroup.'],
  ['group', 'Use processGroup.'],
  [
    'mixed_precision',
    'Wrap a model that packParameters(model, { computeDType }) of nn has packed.',
  ],
])('%s, which users of PyTorch know, has our name for an answer', async (name, hint) => {
  const message = await refusal(DdpConfigError, (rank) => wrap(bag(rank), rank, { [name]: {} }));
  expect(message).toContain(`'${name}'. ${hint}`);
});

it.each<[string, (rank: Rank) => unknown, string]>([
  [
    'no options',
    (rank) => new DistributedDataParallel(bag(rank), loose(undefined)),
    'ddp: expected an object of options (processGroup, ',
  ],
  [
    'no process group',
    (rank) => new DistributedDataParallel(bag(rank), loose({})),
    'expected processGroup to be a process group of @shardweave/collectives, got nothing',
  ],
  [
    'a handle of packed parameters',
    (rank) => wrap(loose(packParameters(bag(rank))), rank),
    'ddp: expected a module, got a plain object. packParameters changes the model in place',
  ],
  [
    'a text for a flag',
    (rank) => wrap(bag(rank), rank, { staticGraph: loose('true') }),
    'ddp: expected staticGraph to be true or false, got "true"',
  ],
  [
    'the name of a hook',
    (rank) => wrap(bag(rank), rank, { communicationHook: loose('bf16') }),
    'ddp: expected communicationHook to be a communication hook, such as compressionHook(), got "bf16"',
  ],
  [
    'an unknown wire',
    () => compressionHook({ wire: loose('fp8') }),
    "compressionHook: expected wire to be 'f16' or 'bf16' or 'int8', got \"fp8\"",
  ],
])('%s where another kind belongs', async (_, call, message) => {
  expect(await refusal(DdpConfigError, call)).toContain(message);
});
