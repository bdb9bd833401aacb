// When plain JavaScript passes wrong options, the error names each of them and its allowed values.

import { FsdpConfigError, type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { stateDict } from '@shardweave/nn';
import { createHostStore } from '@shardweave/shard-store';
import { describe, expect, it } from 'vitest';
import { layer, onRanks } from '../../../tooling/test-kit/index.ts';

async function refusal(options: unknown): Promise<string> {
  const [message] = await onRanks(1, async ({ device, group }) => {
    const given =
      typeof options === 'function' ? options() : { processGroup: group, ...(options as object) };
    try {
      new FullyShardedDataParallel(layer(device), given as FsdpOptions);
    } catch (error) {
      expect(error).toBeInstanceOf(FsdpConfigError);
      return (error as Error).message;
    }
    return expect.fail('expected an error');
  });
  return message!;
}

describe('a wrong value', () => {
  it.each([
    [{ processGroup: undefined }, /processGroup to be a process group .*, got nothing/],
    [{ processGroup: { worldSize: 2, rank: 0 } }, /processGroup to be .*, got a plain object/],
    [{ processGroupReduceScatter: 'x' }, /'reduceScatter', 'default' or a process group, got "x"/],
    [{ replicateGroup: 2 }, /replicateGroup to be a process group .*, got 2/],
    [{ gatherCapBytes: -1 }, /gatherCapBytes to be a number of bytes of at least 0, got -1/],
    [{ gatherCapBytes: Number.NaN }, /gatherCapBytes .*, got NaN/],
    [{ bucketCapMb: '25' }, /bucketCapMb to be a number of MiB, got "25"/],
    [{ bucketCapMb: Number.NaN }, /bucketCapMb .*, got NaN/],
    [
      { gradientPredivideFactor: 0 },
      /gradientPredivideFactor to be a finite number above 0, got 0/,
    ],
    [{ gradientPredivideFactor: Number.POSITIVE_INFINITY }, /gradientPredivideFactor .*Infinity/],
    [{ computeDType: 'fp16' }, /computeDType to be 'f32' or 'f16' or 'bf16', got "fp16"/],
    [{ bufferDType: 'float32' }, /bufferDType to be .*, got "float32"/],
    [{ stateDictDevice: 'cpu' }, /stateDictDevice to be 'host' or 'device', got "cpu"/],
    [{ mixedPrecision: 'bf16' }, /mixedPrecision to be true or false, got "bf16"/],
    [{ reshardAfterForward: 0 }, /reshardAfterForward to be true or false, got 0/],
    [{ flattenParameters: [{ name: 'a' }] }, /flattenParameters to be true, false or groups/],
    [{ name: 3 }, /name to be a text, got 3/],
    [{ offloadConfig: 'ssd' }, /offloadConfig to be an object \{ store, resume \}, got "ssd"/],
    [{ offloadConfig: { resume: true } }, /store to be a ShardStore .*, got nothing/],
    [{ offloadConfig: { store: createHostStore(), dir: 'x' } }, /'dir'. Known ones: store, resume/],
  ])('%j', async (options, message) => {
    expect(await refusal(options)).toMatch(message);
  });

  it.each([() => undefined, () => null, () => 'group', () => []])('%s for all', async (options) => {
    expect(await refusal(options)).toMatch(/expected an object of options \(/);
  });

  it('a wrong value of a call is refused', () =>
    onRanks(2, async ({ device, group }) => {
      const model = new FullyShardedDataParallel(layer(device), { processGroup: group });
      await expect(stateDict(model, { stateDictDevice: 'cpu' as 'host' })).rejects.toThrow(
        /stateDict: expected stateDictDevice to be 'host' or 'device', got "cpu"/,
      );
    }));
});

describe('an unknown name', () => {
  it.each([
    ['mixed_precision', 'Did you mean mixedPrecision?'],
    ['fp32_reduce_scatter', 'Did you mean fp32ReduceScatter?'],
    ['reshardAfterforward', 'Did you mean reshardAfterForward?'],
    ['findUnusedParams', 'Did you mean findUnusedParameters?'],
    ['compute_device', "A module's device is where it computes."],
    ['sharding_strategy', 'Use reshardAfterForward, and replicateGroup for hybrid sharding.'],
    ['color', 'Known ones: '],
  ])('%s: %s', async (name, hint) => {
    const message = await refusal({ [name]: true });
    expect(message).toContain(`'${name}'. ${hint}`);
  });

  it('an unknown name whose value is undefined counts as absent', () =>
    onRanks(1, async ({ device, group }) => {
      const options = { processGroup: group, color: undefined, computeDType: undefined };
      new FullyShardedDataParallel(layer(device), options as unknown as FsdpOptions);
    }));
});
