import { fromF32Array } from '@shardweave/dtypes';
import {
  AdamW,
  applyLora,
  Decoder,
  Gpt2,
  Linear,
  type LoraConfig,
  loadStateDict,
  loraLayers,
  Module,
  mergeAdapters,
  NnConfigError,
  packParameters,
  parsePeftConfig,
  peftConfigText,
  peftState,
  readPeftState,
  resetParameters,
  Sequential,
  StateDictError,
  stateDict,
} from '@shardweave/nn';
import { Encoder } from '@shardweave/nn/embedding';
import { materialize } from '@shardweave/nn/flat';
import { type Device, mean, square, sub, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { expectClose, expectGradients, makeDevice, read, values } from './support/support.js';

const LLAMA = {
  model_type: 'llama',
  vocab_size: 11,
  hidden_size: 12,
  intermediate_size: 20,
  num_hidden_layers: 2,
  num_attention_heads: 3,
  num_key_value_heads: 1,
  max_position_embeddings: 16,
  initializer_range: 0.3,
} as const;

const GPT2 = {
  vocab_size: 11,
  n_positions: 6,
  n_embd: 8,
  n_layer: 2,
  n_head: 2,
  embd_pdrop: 0,
  attn_pdrop: 0,
  resid_pdrop: 0,
  initializer_range: 0.3,
};

const ENCODER = {
  ...{ vocab_size: 11, hidden_size: 12, intermediate_size: 20, num_hidden_layers: 2 },
  ...{ num_attention_heads: 3, max_position_embeddings: 6, initializer_range: 0.3 },
  ...{ hidden_dropout_prob: 0, attention_probs_dropout_prob: 0 },
};

const MODELS: Record<string, (device: Device, deferInit?: boolean) => Module> = {
  llama: (device, deferInit = false) => new Decoder(device, LLAMA, { seed: 2, deferInit }),
  gpt2: (device, deferInit = false) => new Gpt2(device, GPT2, { seed: 2, deferInit }),
  encoder: (device, deferInit = false) => new Encoder(device, ENCODER, { seed: 2, deferInit }),
};

const ids = (device: Device, shift = 0): Tensor =>
  device.tensor(
    Int32Array.from({ length: 8 }, (_, i) => (i * 7 + shift) % 11),
    [2, 4],
  );

/** The mean loss of targets, or of an encoder's rows how far they are from fixed values. */
const lossOf = async (model: Module): Promise<Tensor> => {
  const { device } = model;
  if (!(model instanceof Encoder)) {
    return mean(await model.call(ids(device), { targets: ids(device, 3) }));
  }
  const rows = await model.call(ids(device));
  return mean(square(sub(rows, device.tensor(values(rows.size, 5), rows.shape))));
};

/** How many linear layers a block has, and the layer whose adapters' gradients are compared. */
const BLOCKS: Record<string, readonly [numLinears: number, target: string]> = {
  llama: [7, 'v_proj'],
  gpt2: [4, 'c_attn'],
  encoder: [6, 'value'],
};

/** Moves adapters away from their initial values, under which they change nothing. */
function spread(model: Module): void {
  for (const [i, { loraB }] of [...loraLayers(model).values()].entries()) {
    const numbers = Float32Array.from(values(loraB.weight.size, i + 1), (x) => x * 0.3);
    loraB.weight.storage.write(new Uint8Array(numbers.buffer));
  }
}

describe.each(Object.keys(MODELS))('adapters of %s', (family) => {
  const make = MODELS[family]!;
  const [numLinears, target] = BLOCKS[family]!;

  it('begin with what the base computes, and are all that is trained', async () => {
    const device = makeDevice();
    const model = make(device);
    const names = model.namedParameters().map(([name]) => name);
    const before = await (await lossOf(model)).item();
    const { layers } = applyLora(model, { rank: 2 });
    expect(await (await lossOf(model)).item()).toBe(before);
    const after = model.namedParameters();
    const trained = after.filter(([, { requiresGrad }]) => requiresGrad);
    expect(after.filter((entry) => !trained.includes(entry)).map(([name]) => name)).toEqual(names);
    expect(trained.map(([name]) => name)).toEqual(
      layers.flatMap((path) => [`${path}.lora_A.weight`, `${path}.lora_B.weight`]),
    );
    expect(trained.every(([name, tensor]) => tensor.name === name)).toBe(true);
    expect(layers).toHaveLength(2 * numLinears);
  });

  it('have the gradients of central differences, and leave the base none', async () => {
    const device = makeDevice();
    const model = make(device);
    applyLora(model, { rank: 2, alpha: 3, targets: [target] });
    spread(model);
    const trained = model.parameters().filter(({ requiresGrad }) => requiresGrad);
    await expectGradients(trained, () => lossOf(model));
    const others = model.parameters().filter(({ requiresGrad }) => !requiresGrad);
    expect(others.filter(({ grad }) => grad !== undefined)).toEqual([]);
  });

  it('merged into the weights compute the same', async () => {
    const device = makeDevice();
    const model = make(device);
    const { alpha, rank } = applyLora(model, { rank: 2, alpha: 3 });
    spread(model);
    const state = await stateDict(model);
    const lazy = [...state].map(([name, { data, ...rest }]) => {
      return [name, { ...rest, read: async () => data }] as const;
    });
    const base = new Map(lazy.filter(([name]) => !name.includes('lora_')));
    const merged = mergeAdapters(base, state, {
      device,
      scale: alpha / rank,
      fanInFanOut: family === 'gpt2',
    });
    expect([...merged.keys()]).toEqual([...base.keys()]);
    const read = [...merged].map(async ([name, { dtype, shape, read }]) => {
      return [name, { dtype, shape, data: await read() }] as const;
    });
    const plain = make(device);
    const before = await (await lossOf(plain)).item();
    await loadStateDict(plain, new Map(await Promise.all(read)));
    const [adapted, mergedLoss] = [await lossOf(model), await lossOf(plain)];
    expect(Math.abs((await mergedLoss.item()) - (await adapted.item()))).toBeLessThan(1e-6);
    expect(Math.abs((await mergedLoss.item()) - before)).toBeGreaterThan(1e-3);
    const undone = mergeAdapters(merged, state, {
      device,
      scale: -alpha / rank, // takes out of the weights what was merged
      fanInFanOut: family === 'gpt2',
    });
    for (const [name, { read }] of base) {
      const [was, is] = [await read(), await undone.get(name)!.read()].map(
        ({ buffer, byteOffset, byteLength }) =>
          new Float32Array(buffer, byteOffset, byteLength / 4),
      );
      expect(Math.max(...is!.map((value, i) => Math.abs(value - was![i]!)))).toBeLessThan(1e-6);
    }
  });

  it('are drawn alike, deferred or not, and their base in 16 bits as it would be cast', async () => {
    const plain = make(makeDevice());
    const deferred = make(makeDevice(), true);
    for (const model of [plain, deferred]) {
      applyLora(model, { rank: 3, seed: 4, baseDType: 'bf16' });
    }
    materialize(deferred);
    expect(await stateDict(deferred)).toEqual(await stateDict(plain));
    const dtypes = new Set(plain.parameters().map((p) => `${p.requiresGrad} ${p.dtype}`));
    expect([...dtypes].sort()).toEqual(['false bf16', 'true f32']);
  });
});

it('scale by alpha over rank, drop while training, and begin uniform and zero', async () => {
  const device = makeDevice({ seed: 3 });
  const layer = new Linear(device, { inFeatures: 4, outFeatures: 3 });
  const model = new Sequential(device, [layer]);
  applyLora(model, { rank: 2, alpha: 8, dropout: 0.5 });
  const [adapted] = loraLayers(model).values();
  const [a, b] = [adapted!.loraA.weight, adapted!.loraB.weight];
  expect([a.shape, b.shape]).toEqual([
    [2, 4],
    [3, 2],
  ]);
  expect(await read(b)).toEqual(Array(6).fill(0));
  const first = await read(a);
  expect(Math.max(...first.map(Math.abs))).toBeLessThanOrEqual(0.5); // The bound is 1 / sqrt(4).
  expect(new Set(first).size).toBe(8);
  spread(model);
  const x = device.tensor(values(8), [2, 4]);
  const product = async (matrix: Tensor, rows: number[], width: number): Promise<number[]> => {
    const weights = await read(matrix);
    const [outs, ins] = matrix.shape as [number, number];
    return Array.from({ length: (rows.length / width) * outs }, (_, i) => {
      const [row, out] = [Math.floor(i / outs), i % outs];
      return Array.from({ length: ins }, (_, j) => rows[row * ins + j]! * weights[out * ins + j]!) //
        .reduce((sum, term) => sum + term, 0);
    });
  };
  const narrow = await product(a, await read(x), 4);
  const wide = await product(b, narrow, 2);
  const base = await read(await layer.call(x));
  model.eval();
  expectClose(
    await read(await model.call(x)),
    base.map((value, i) => value + 4 * wide[i]!),
    1e-6,
  );
  model.train();
  expect(await read(await model.call(x))).not.toEqual(await read(await model.call(x)));
  const judged = new Sequential(device, [new Linear(device, { inFeatures: 4, outFeatures: 3 })]);
  judged.eval();
  applyLora(judged, { rank: 2, dropout: 0.5 });
  expect([...loraLayers(judged).values()].map(({ isTraining }) => isTraining)).toEqual([false]);
});

it('resets adapters to their first values: the second factor is zero', async () => {
  const model = MODELS.llama!(makeDevice());
  applyLora(model, { rank: 2 });
  spread(model);
  resetParameters(model, { seed: 1 });
  const [{ loraA, loraB }] = loraLayers(model).values() as unknown as [
    ReturnType<typeof loraLayers> extends Map<string, infer L> ? L : never,
  ];
  expect(await read(loraB.weight)).toEqual(Array(loraB.weight.size).fill(0));
  expect(await read(loraA.weight)).not.toContain(0);
});

it('trains: the loss falls, and the base keeps its bits', async () => {
  const device = makeDevice();
  const model = MODELS.llama!(device);
  applyLora(model, { rank: 4 });
  const isBase = ([name]: readonly [string, unknown]) => !name.includes('lora_');
  const before = [...(await stateDict(model))].filter(isBase);
  const packed = packParameters(model);
  const optimizer = new AdamW(
    model.parameters().filter(({ requiresGrad }) => requiresGrad),
    {
      lr: 0.02,
    },
  );
  const losses: number[] = [];
  for (let step = 0; step < 10; step++) {
    await device.scope(async () => {
      const loss = await lossOf(model);
      await loss.backward();
      losses.push(await loss.item());
    });
    await optimizer.step();
    optimizer.zeroGrad();
  }
  expect(losses.at(-1)!).toBeLessThan(losses[0]! - 0.2);
  expect([...(await stateDict(model))].filter(isBase)).toEqual(before);
  packed.dispose();
});

describe('what cannot be adapted', () => {
  it.each<[RegExp, (model: Module) => unknown]>([
    [
      /targets among .*q_proj.*got 'w_proj'/,
      (model) => applyLora(model, { rank: 1, targets: ['w_proj'] }),
    ],
    [/'rank'|rank/, (model) => applyLora(model, { rank: 0 })],
    [/dropout/, (model) => applyLora(model, { rank: 1, dropout: 1 })],
    [/targets/, (model) => applyLora(model, { rank: 1, targets: [] })],
    [
      /without adapters/,
      (model) => {
        applyLora(model, { rank: 1 });
        applyLora(model, { rank: 1 });
      },
    ],
    [
      /packed/,
      (model) => {
        packParameters(model);
        applyLora(model, { rank: 1 });
      },
    ],
    [/linear layers/, ({ device }) => applyLora(new Sequential(device, []), { rank: 1 })],
  ])('%s', (message, body) => {
    const model = MODELS.llama!(makeDevice());
    expect(() => body(model)).toThrow(message);
    expect(() => body(MODELS.llama!(makeDevice()))).toThrow(NnConfigError);
  });

  it('names are those of whole parts of paths, and modes, names and seeds are those of layers', async () => {
    const model = MODELS.llama!(makeDevice());
    expect(() => applyLora(model, { rank: 1, targets: ['proj'] })).toThrow("got 'proj'");
    const layer = () => new Linear(model.device, { inFeatures: 3, outFeatures: 3 });
    const Named = class extends Module<[], void> {
      readonly parts = ['head', 'header', 'body', 'tail'].map((name) => this.child(name, layer()));
      forward(): void {}
    };
    const named = new Named(model.device);
    named.children().get('body')!.eval();
    const config = applyLora(named, { rank: 2, seed: 7, modulesToSave: ['head'] });
    expect(config).toEqual({
      ...{ rank: 2, alpha: 4, dropout: 0 },
      ...{ layers: ['header', 'body', 'tail'], modulesToSave: ['head'] },
    });
    const adapted = loraLayers(named);
    expect([...adapted.keys()]).toEqual(config.layers);
    expect([...adapted.values()].map(({ isTraining }) => isTraining)).toEqual([true, false, true]);
    const trained = named.namedParameters().filter(([, { requiresGrad }]) => requiresGrad);
    expect(trained.map(([name]) => name).filter((name) => !name.includes('lora_'))).toEqual([
      ...['head.weight', 'head.bias'],
    ]);
    expect(trained.every(([name, tensor]) => tensor.name === name)).toBe(true);
    const drawn = [...adapted.values()].map(async ({ loraA }) => (await read(loraA.weight)).join());
    expect(new Set(await Promise.all(drawn)).size).toBe(3);
  });

  it('leaves a model as it was', () => {
    const model = MODELS.llama!(makeDevice());
    expect(() => applyLora(model, { rank: 1, targets: ['q_proj', 'other'] })).toThrow();
    expect(loraLayers(model).size).toBe(0);
    expect(model.parameters().every(({ requiresGrad }) => requiresGrad)).toBe(true);
  });

  it('merging: adapters of another model', async () => {
    const device = makeDevice();
    const tensor = (shape: number[]) => {
      const size = shape.reduce((product, dim) => product * dim, 1);
      return {
        dtype: 'f32',
        shape,
        data: new Uint8Array(size * 4),
        read: async () => new Uint8Array(size * 4),
      } as const;
    };
    const adapters = new Map([
      ['x.lora_A.weight', tensor([2, 4])],
      ['x.lora_B.weight', tensor([3, 2])],
    ]);
    const merge = (base: Map<string, ReturnType<typeof tensor>>) => () =>
      mergeAdapters(base, adapters, { device, scale: 1 });
    expect(merge(new Map())).toThrow(/expected a base model with 'x.weight'/);
    const half = new Map([['x.lora_A.weight', tensor([2, 4])]]);
    const base = new Map([['x.weight', tensor([3, 4])]]);
    expect(() => mergeAdapters(base, half, { device, scale: 1 })).toThrow(StateDictError);
    expect(() => mergeAdapters(base, half, { device, scale: 1 })).toThrow(
      /expected both factors of 'x', got none named 'x.lora_B.weight'/,
    );
    expect(merge(new Map([['x.weight', tensor([3, 5])]]))).toThrow(StateDictError);
    expect(merge(new Map([['x.weight', tensor([3, 4])]]))).not.toThrow();
    expect(merge(new Map([['x.weight', tensor([4, 3])]]))).toThrow(/\[3, 4\] in floats/);
    adapters.set('x.lora_B.weight', tensor([3, 5]));
    expect(merge(new Map([['x.weight', tensor([3, 4])]]))).toThrow(
      /adapters \[2, 4\] and \[3, 5\]/,
    );
  });

  it.each(['f32', 'bf16'] as const)(
    'merging rounds once to %s, and holds nothing',
    async (dtype) => {
      const device = makeDevice();
      const entry = (shape: number[], numbers: number[], as: 'f32' | 'bf16' = 'f32') => ({
        ...{ dtype: as, shape, data: fromF32Array(Float32Array.from(numbers), as) },
        read: async () => fromF32Array(Float32Array.from(numbers), as),
      });
      const adapters = new Map([
        ['x.lora_A.weight', entry([1, 2], [1, 2])],
        ['x.lora_B.weight', entry([3, 1], [1, 2, 3], 'bf16')],
      ]);
      const base = new Map([
        ['x.weight', entry([3, 2], [1, 1, 1, 1, 1, 1], dtype)],
        ['y.weight', entry([1], [7])],
      ]);
      const merged = mergeAdapters(base, adapters, { device, scale: 0.5 });
      expect(merged.get('y.weight')).toBe(base.get('y.weight'));
      const { dtype: as, shape, read: bytes } = merged.get('x.weight')!;
      expect([as, shape]).toEqual([dtype, [3, 2]]);
      expect(await bytes()).toEqual(fromF32Array(Float32Array.of(1.5, 2, 2, 3, 2.5, 4), dtype));
      expect(device.memory().live.total).toBe(0);
    },
  );
});

describe("PEFT's files", () => {
  const config: LoraConfig = {
    rank: 4,
    alpha: 6,
    dropout: 0.1,
    layers: ['model.layers.0.self_attn.q_proj', 'model.layers.1.self_attn.q_proj', 'h.0.mlp.c_fc'],
  };

  it('go out and come back', () => {
    const base = { base: 'ocean/whale', revision: 'v1' };
    const text = peftConfigText(config, base);
    expect(parsePeftConfig(text)).toEqual({
      rank: 4,
      alpha: 6,
      dropout: 0.1,
      targets: ['q_proj', 'c_fc'],
      ...base,
    });
    expect(parsePeftConfig(peftConfigText(config))).toMatchObject({ revision: undefined });
    expect(JSON.parse(text)).toMatchObject({ peft_type: 'LORA', r: 4, lora_alpha: 6 });
    const state = new Map(
      ['a.lora_A.weight', 'a.lora_B.weight', 'a.weight'].map((name) => [
        name,
        { dtype: 'f32', shape: [1], data: new Uint8Array(4) } as const,
      ]),
    );
    const file = peftState(state);
    expect([...file.keys()]).toEqual([
      'base_model.model.a.lora_A.weight',
      'base_model.model.a.lora_B.weight',
    ]);
    expect([...readPeftState(file).keys()]).toEqual(['a.lora_A.weight', 'a.lora_B.weight']);
  });

  it.each([
    ['use_dora', true],
    ['init_lora_weights', 'pissa_niter_4'],
    ['use_rslora', true],
    ['bias', 'all'],
    ['modules_to_save', ['lm_head']],
    ['rank_pattern', { q_proj: 2 }],
    ['alpha_pattern', { q_proj: 2 }],
    ['peft_type', 'LOHA'],
    ['layers_to_transform', [1]],
    ['r', 0],
    ['lora_alpha', -1],
    ['lora_dropout', 1],
    ['something_new', 5],
  ])('files with %s of %j are refused by its name', (field, value) => {
    const fields = { ...JSON.parse(peftConfigText(config)), [field]: value };
    expect(() => parsePeftConfig(JSON.stringify(fields))).toThrow(
      `adapter_config.json: expected ${field} `,
    );
  });

  it('files with other tensors, or half an adapter, are refused', () => {
    const tensor = { dtype: 'f32', shape: [1], data: new Uint8Array(4) } as const;
    expect(() => readPeftState(new Map([['base_model.model.lm_head.weight', tensor]]))).toThrow(
      /lm_head/,
    );
    expect(() => readPeftState(new Map([['base_model.model.a.lora_A.weight', tensor]]))).toThrow(
      /of 'a', got one/,
    );
    expect(() => parsePeftConfig('[1]')).toThrow(/object/);
    expect(() => parsePeftConfig('{')).toThrow(/JSON/);
  });
});
