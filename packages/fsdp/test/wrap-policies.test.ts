// These tests check which modules policies choose, which configs win, and that models wrapped by
// them train as plain ones do.

import {
  autoWrap,
  defaultAutoWrapPolicy,
  enableWrap,
  FsdpConfigError,
  FullyShardedDataParallel,
  fullyShard,
  isFsdp,
  noWrap,
  type Wrap,
  type WrapPolicy,
} from '@shardweave/fsdp';
import {
  autoWrapBn,
  configAutoWrapPolicy,
  setWrapperConfig,
  wrapperConfigOf,
} from '@shardweave/fsdp/fairscale';
import {
  BatchNorm1d,
  checkpoint,
  Gpt2,
  Linear,
  type Module,
  ModuleList,
  MultiheadAttention,
  Sequential,
} from '@shardweave/nn';
import { type Device, linear, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  DIM,
  forwardBackward,
  layer,
  moduleOf,
  onRanks,
  type Rank,
  Stack,
  TINY,
} from '../../../tooling/test-kit/index.ts';
import { ResidualMlp } from '../../../tooling/test-kit/residual-mlp.ts';
import { expectEqualTraining } from './support/sharding.js';

// An instance's text describes by these words what becomes of its parameters after forward.
const RESHARDING = 'reshards after forward';
const KEEPING = 'keeps parameters until backward';

const LAYER = DIM * DIM + DIM; // These are the elements of one layer.

/**
 * Returns the paths of all instances in a module, by the names of the bare module. The root is ''.
 */
function wrappedPaths(module: Module): string[] {
  const found: string[] = [];
  const visit = (each: Module, path: string) => {
    if (isFsdp(each)) {
      found.push(path);
    }
    for (const [name, child] of each.children()) {
      visit(child, [path, each.childPrefix(name)].filter((part) => part !== '').join('.'));
    }
  };
  visit(module, '');
  return found;
}

/** Makes layers 0, 1 (which holds 1.0 and 1.1) and 2: four Linears. */
function nested(device: Device): Stack {
  return new Stack(device, [
    layer(device),
    new Stack(device, [layer(device), layer(device)]),
    layer(device),
  ]);
}

/** Runs the body as the only rank of its group. */
function alone(body: (rank: Rank, wrap: Wrap) => void | Promise<void>): Promise<void> {
  return onRanks(1, async (rank) => body(rank, enableWrap({ processGroup: rank.group })));
}

describe('enableWrap', () => {
  it("overrides win over the module's own config, which wins over the common one", () =>
    alone(({ device, group }) => {
      const seen: object[] = [];
      const wrap = enableWrap(
        { processGroup: group, name: 'common', reshardAfterForward: false, gatherCapBytes: 1 },
        (module, options) => {
          seen.push(options);
          return module;
        },
      );
      const tagged = layer(device);
      setWrapperConfig(tagged, { name: 'own', gatherCapBytes: 2 });
      wrap(layer(device));
      wrap(tagged);
      wrap(tagged, { name: 'call' });
      const common = { processGroup: group, reshardAfterForward: false };
      expect(seen).toEqual([
        { ...common, name: 'common', gatherCapBytes: 1 },
        { ...common, name: 'own', gatherCapBytes: 2 },
        { ...common, name: 'call', gatherCapBytes: 2 },
      ]);
    }));

  it('makes instances with the options, or what makeWrapper puts around them', () =>
    alone(({ device, group }) => {
      const config = { processGroup: group, reshardAfterForward: false };
      const plain = enableWrap(config)(layer(device));
      expect(String(plain)).toContain(KEEPING);
      class Declared extends Linear {
        readonly wrapperConfig = { reshardAfterForward: true };
      }
      const own = new Declared(device, { inFeatures: 2, outFeatures: 2 });
      const declared = enableWrap(config)(own);
      expect(String(declared)).toContain(RESHARDING);
      const both = enableWrap(config, (module, options) =>
        checkpoint(new FullyShardedDataParallel(module, options)),
      )(layer(device));
      expect(isFsdp(both)).toBe(false);
      expect(wrappedPaths(both)).toEqual(['']);
    }));

  it('leaves nothing behind: two wraps side by side, and noWrap, keep to themselves', () =>
    alone(({ device, group }) => {
      const build = (wrap: Wrap) => new Stack(device, [wrap(layer(device)), layer(device)]);
      const [a, b] = ['a', 'b'].map((name) => enableWrap({ processGroup: group, name })) as [
        Wrap,
        Wrap,
      ];
      const names = [a, b, a].map((wrap) => (wrap(layer(device)) as { name?: string }).name);
      expect(names).toEqual(['a', 'b', 'a']);
      expect(wrappedPaths(build(a))).toEqual(['0']);
      expect(wrappedPaths(build(noWrap))).toEqual([]);
    }));
});

describe('autoWrap with the default policy', () => {
  it.each([
    { min: 4 * LAYER + 1, paths: [], numWrapped: 0 },
    { min: 4 * LAYER, paths: [''], numWrapped: 4 * LAYER },
    // Module 1 is wrapped as a whole, and two layers are left to the root.
    { min: 2 * LAYER, paths: ['', '1'], numWrapped: 4 * LAYER },
    { min: LAYER, paths: ['0', '1.0', '1.1', '2'], numWrapped: 4 * LAYER },
    // No module inside the root has that many elements.
    { min: 2 * LAYER + 1, paths: [''], numWrapped: 4 * LAYER },
    { min: Number.POSITIVE_INFINITY, paths: [], numWrapped: 0 },
  ])('a minimum of $min elements wraps $paths', ({ min, paths, numWrapped }) =>
    alone(({ device }, wrap) => {
      const result = autoWrap(nested(device), defaultAutoWrapPolicy({ minNumParams: min }), wrap);
      expect(wrappedPaths(result.module)).toEqual(paths);
      expect(result.numWrappedParams).toBe(numWrapped);
    }),
  );

  it('counts what wrapped children have left over, and says what no wrapper holds', () =>
    alone(({ device }, wrap) => {
      const wide = new Linear(device, { inFeatures: 10, outFeatures: 20 }); // It has 220 elements.
      const model = new Stack(device, [wide, layer(device), layer(device)]);
      const policy = defaultAutoWrapPolicy({ minNumParams: 100 });
      const result = autoWrap(model, policy, wrap);
      expect(result.module).toBe(model);
      expect(wrappedPaths(model)).toEqual(['0']);
      expect(result.numWrappedParams).toBe(220);
    }));

  it('skipParamsCheckForRoot wraps the root, and only the root, though little is left', () =>
    alone(({ device }, wrap) => {
      const options = { minNumParams: 2 * LAYER + 1, skipParamsCheckForRoot: true };
      const policy = defaultAutoWrapPolicy(options);
      const small = autoWrap(layer(device), policy, wrap);
      expect(wrappedPaths(small.module)).toEqual([]); // Its children aren't visited.
      const wide = new Linear(device, { inFeatures: 20, outFeatures: 20 });
      const inner = new Stack(device, [wide, layer(device)]);
      const model = new Stack(device, [inner, layer(device)]);
      expect(wrappedPaths(autoWrap(model, policy, wrap).module)).toEqual(['', '0.0']);
    }));

  it('passes over excluded modules and into them, and not into forced leaves', () =>
    alone(({ device }, wrap) => {
      const build = () =>
        new Stack(device, [
          new ModuleList(device, [nested(device), layer(device)]),
          new MultiheadAttention(device, { embedDim: 8, numHeads: 2 }),
        ]);
      const wrapped = (options: Parameters<typeof defaultAutoWrapPolicy>[0]) =>
        wrappedPaths(autoWrap(build(), defaultAutoWrapPolicy(options), wrap).module);
      const inList = ['0.0.0', '0.0.1.0', '0.0.1.1', '0.0.2', '0.1'];
      // The attention has 288 elements and is left to the root as a whole.
      expect(wrapped({ minNumParams: LAYER })).toEqual(['', ...inList]);
      const minNumParams = 4 * LAYER;
      expect(wrapped({ minNumParams })).toEqual(['', '0.0']);
      expect(wrapped({ minNumParams, forceLeafModules: [Stack] })).toEqual([]);
      const options = { forceLeafModules: [], excludeWrapModules: [Stack] };
      expect(wrapped({ minNumParams, ...options })).toEqual(['0', '1.c_attn']);
    }));

  it('asks for 1e8 elements unless told otherwise', () =>
    alone(({ device }) => {
      const policy: WrapPolicy = defaultAutoWrapPolicy();
      const ask = (unwrappedParams: number, question: 'recurse' | 'wrap') =>
        policy({ module: layer(device), path: 'a', isRoot: true, question, unwrappedParams });
      for (const question of ['recurse', 'wrap'] as const) {
        expect(ask(1e8, question)).toBe(true);
        expect(ask(1e8 - 1, question)).toBe(false);
      }
    }));
});

describe('fullyShard', () => {
  it('wraps the modules of a class in place, by their paths, and then the root', () =>
    alone(({ device, group }) => {
      const model = nested(device);
      setWrapperConfig(model.children().get('0')!, { reshardAfterForward: true });
      const options = { processGroup: group, name: 'root', reshardAfterForward: false };
      const root = fullyShard(model, { ...options, wrap: [Linear] });
      expect(root.module).toBe(model);
      expect(root.instances().map(({ name }) => name)).toEqual(['root', '0', '1.0', '1.1', '2']);
      expect(String(model.children().get('2'))).toContain(KEEPING);
      expect(String(model.children().get('0'))).toContain(RESHARDING);
    }));

  it('makes one unit of all without wrap, and those of a policy with one', () =>
    alone(({ device, group }) => {
      const alone = fullyShard(nested(device), { processGroup: group });
      expect(wrappedPaths(alone)).toEqual(['']);
      const policy: WrapPolicy = ({ path, question }) => question === 'recurse' || path === '1';
      const chosen = fullyShard(nested(device), { processGroup: group, wrap: policy });
      expect(wrappedPaths(chosen)).toEqual(['', '1']);
    }));

  it('refuses a class that is not inside, and a class where a list belongs', () =>
    alone(({ device, group }) => {
      const options = { processGroup: group };
      const misplaced = () => fullyShard(nested(device), { ...options, wrap: [BatchNorm1d] });
      expect(misplaced).toThrow(FsdpConfigError);
      expect(misplaced).toThrow('expected modules of BatchNorm1d inside Stack, got none');
      const bare = { ...options, wrap: Linear as unknown as WrapPolicy };
      expect(() => fullyShard(nested(device), bare)).toThrow('got the class Linear. Write wrap:');
      const text = { ...options, wrap: 'Linear' as unknown as WrapPolicy };
      expect(() => fullyShard(nested(device), text)).toThrow('got "Linear"');
    }));
});

describe('autoWrap', () => {
  it('asks children before their parent, with what is left, and names instances by path', () =>
    alone(({ device }, wrap) => {
      const asked: string[] = [];
      const { module } = autoWrap(
        new Stack(device, [new Stack(device, [layer(device)]), layer(device)]),
        ({ path, isRoot, question, unwrappedParams }) => {
          asked.push(`${question} '${path}' ${unwrappedParams / LAYER}${isRoot ? ' root' : ''}`);
          return question === 'recurse' || path === '0.0' || isRoot;
        },
        wrap,
      );
      expect(asked).toEqual([
        "recurse '' 2 root",
        ...["recurse '0' 1", "recurse '0.0' 1", "wrap '0.0' 1", "wrap '0' 0"],
        ...["recurse '1' 1", "wrap '1' 1"],
        "wrap '' 1 root",
      ]);
      const names = module.namedModules().flatMap(([, each]) => (isFsdp(each) ? each.name : []));
      expect(names).toEqual(['fsdp', '0.0']);
    }));

  it('refuses a model with something wrapped inside, and leaves it as it was', () =>
    alone(({ device }, wrap) => {
      const model = new Stack(device, [layer(device), new Stack(device, [wrap(layer(device))])]);
      const attempt = () => autoWrap(model, () => true, wrap);
      expect(attempt).toThrow(FsdpConfigError);
      expect(attempt).toThrow(/'1\.0'/);
      expect(wrappedPaths(model)).toEqual(['1.0']);
      // The model itself may be wrapped already.
      const outer = autoWrap(wrap(layer(device)), ({ isRoot }) => isRoot, noWrap);
      expect(isFsdp(outer.module)).toBe(true);
    }));

  it('wraps a module that stands in two places once', () =>
    alone(({ device }, wrap) => {
      const shared = layer(device);
      const model = new Stack(device, [shared, new Stack(device, [shared, layer(device)])]);
      const all = defaultAutoWrapPolicy({ minNumParams: LAYER });
      const result = autoWrap(model, all, wrap);
      const inner = model.children().get('1')!;
      expect(model.children().get('0')).toBe(inner.children().get('0'));
      expect(isFsdp(inner.children().get('0'))).toBe(true);
      expect(result.numWrappedParams).toBe(2 * LAYER);
    }));

  it('leaves what shares a parameter or a module with others to the module around both', () =>
    alone(({ device }, wrap) => {
      const first = layer(device);
      const tied = new Stack(device, [
        first,
        moduleOf(device, { weight: first.weight }, ({ weight }, x: Tensor) =>
          linear(x, { weight }),
        ),
      ]);
      const model = new Stack(device, [tied, layer(device)]);
      expect(wrappedPaths(autoWrap(model, () => true, wrap).module)).toEqual(['', '0', '1']);
      const bare = layer(device);
      const holders = [0, 1].map(() => new Stack(device, [bare, layer(device)]));
      const policy: WrapPolicy = ({ module, question }) =>
        question === 'recurse' || module !== bare;
      const { module } = autoWrap(new Stack(device, holders), policy, wrap);
      expect(wrappedPaths(module)).toEqual(['', '0.1', '1.1']);
    }));

  it('the config policy wraps what has a config, however small', () =>
    alone(({ device }, wrap) => {
      const model = nested(device);
      setWrapperConfig(model.children().get('2')!, { reshardAfterForward: false });
      expect(autoWrap(model, configAutoWrapPolicy, wrap).numWrappedParams).toBe(LAYER);
      expect(wrappedPaths(model)).toEqual(['2']);
      expect(String(model.children().get('2'))).toContain(KEEPING);
    }));

  it('two policies together wrap what either chooses', () =>
    alone(async ({ device, group }) => {
      const options = { inFeatures: 3, width: 8, numBlocks: 2, numClasses: 2 };
      const net = new ResidualMlp(device, options);
      await autoWrapBn(net, { processGroup: group, wrapIt: false });
      const bySize = defaultAutoWrapPolicy({ minNumParams: 128, skipParamsCheckForRoot: true });
      const policy: WrapPolicy = (each) => configAutoWrapPolicy(each) || bySize(each);
      const wrap = enableWrap({ processGroup: group, mixedPrecision: true, computeDType: 'bf16' });
      const { module, numWrappedParams } = autoWrap(net, policy, wrap);
      const norms = ['0.norm', '1.norm1', '1.norm2', '2.norm1', '2.norm2'];
      expect(wrappedPaths(module).sort()).toEqual(['', '1', '2', ...norms].sort());
      expect(numWrappedParams).toBe(module.parameters().reduce((sum, { size }) => sum + size, 0));
      const dtypes = (module as FullyShardedDataParallel)
        .instances()
        .map(({ name, units }) => [name, units[0]!.full.storage.dtype]);
      expect(dtypes).toContainEqual(['1', 'bf16']);
      expect(dtypes).toContainEqual(['1.norm2', 'f32']);
    }));

  it.each([1, 2, 3])('world size %i: trains as the plain model does', async (worldSize) => {
    await expectEqualTraining(
      {
        build: (device, wrap) => {
          const policy = defaultAutoWrapPolicy({ minNumParams: LAYER });
          const { module } = autoWrap(nested(device), policy, wrap as Wrap);
          return wrap(module);
        },
      },
      worldSize,
    );
  });

  it('wraps a GPT-2 with its tied table, which trains as the plain one does', async () => {
    const [expected] = await onRanks(1, ({ device }) =>
      forwardBackward(device, new Gpt2(device, TINY, { seed: 3 }), 0, {
        batch: 2,
        first: 0,
        count: 2,
      }),
    );
    const losses = await onRanks(2, async ({ device, group, rank }) => {
      const gpt2 = new Gpt2(device, TINY, { seed: 3 });
      const wrap = enableWrap({ processGroup: group });
      const options = { minNumParams: 500, skipParamsCheckForRoot: true };
      const { module } = autoWrap(gpt2, defaultAutoWrapPolicy(options), wrap);
      expect(wrappedPaths(module).length).toBeGreaterThan(4);
      expect(wrappedPaths(module)[0]).toBe('');
      return forwardBackward(device, module, 0, { batch: 2, first: rank, count: 1 });
    });
    expect((losses[0]! + losses[1]!) / 2).toBeCloseTo(expected!, 5);
  });
});

describe('autoWrapBn', () => {
  const net = (device: Device) =>
    new ResidualMlp(device, { inFeatures: 3, width: 4, numBlocks: 1, numClasses: 2 });
  const NORMS = ['0.norm', '1.norm1', '1.norm2'];

  it('wraps each batch norm, f32, un-flattened, not resharded, and nothing else', () =>
    alone(async ({ device, group }) => {
      const model = net(device);
      expect(await autoWrapBn(model, { processGroup: group })).toBe(model);
      expect(wrappedPaths(model)).toEqual(NORMS);
      for (const [, each] of model.namedModules()) {
        if (!isFsdp(each)) {
          continue;
        }
        expect(String(each)).toContain(KEEPING);
        expect(
          each.units.map(({ full, parameters }) => [full.storage.dtype, parameters.length]),
        ).toEqual([
          ['f32', 1],
          ['f32', 1],
        ]);
      }
      const single = await autoWrapBn(new BatchNorm1d(device, { numFeatures: 2 }), {
        processGroup: group,
      });
      expect(isFsdp(single)).toBe(true);
    }));

  it('only tags where wrapIt is false, and takes another config', () =>
    alone(async ({ device, group }, wrap) => {
      const model = net(device);
      const fsdpConfig = { reshardAfterForward: true, flattenParameters: true };
      await autoWrapBn(model, { processGroup: group, wrapIt: false, fsdpConfig });
      expect(wrappedPaths(model)).toEqual([]);
      const options = { wrapIt: false, processGroup: group };
      await expect(autoWrapBn(model, options)).rejects.toThrow(FsdpConfigError);
      await expect(autoWrapBn(model, options)).rejects.toThrow(/'0\.norm'/);
      autoWrap(model, configAutoWrapPolicy, wrap);
      expect(wrappedPaths(model)).toEqual(NORMS);
      const { norm } = model.children().get('0') as unknown as { norm: FullyShardedDataParallel };
      expect(String(norm)).toContain(RESHARDING);
      expect(norm.units).toHaveLength(1);
    }));

  it('replaces a config where a collision is allowed', () =>
    alone(async ({ device, group }) => {
      const norm = new BatchNorm1d(device, { numFeatures: 2 });
      setWrapperConfig(norm, { reshardAfterForward: true });
      const options = { processGroup: group, wrapIt: false, assertOnCollision: false };
      await autoWrapBn(new Sequential(device, [norm]), options);
      expect(wrapperConfigOf(norm)).toMatchObject({ reshardAfterForward: false });
    }));

  it('singleRankPg puts them into a group of one rank', () =>
    onRanks(2, async ({ device, group }) => {
      const model = net(device);
      await autoWrapBn(model, { processGroup: group, singleRankPg: true });
      const found = model.namedModules().flatMap(([, each]) => (isFsdp(each) ? [each] : []));
      expect(found.map(({ processGroup }) => processGroup.worldSize)).toEqual([1, 1, 1]);
      expect(new Set(found.map(({ processGroup }) => processGroup)).size).toBe(1);
    }));
});
