// The engine @jax-js/jax on WebGPU or wasm. Usage: node jax.mjs webgpu|wasm

import { readFileSync } from 'node:fs';
import { GPT, parameters, TOKENS, tokens } from '../gpt-shape.mjs';
import { serve } from './serve.mjs';

const device = process.argv[2];
if (device === 'webgpu') {
  await import('./webgpu-globals.mjs');
} else {
  Object.defineProperty(globalThis, 'navigator', {
    value: { userAgent: 'node' },
    configurable: true,
  });
}
addIteratorHelpers();
const jax = await import('@jax-js/jax');
const { numpy: np, nn, jit, valueAndGrad } = jax;
await jax.init(device);
jax.defaultDevice(device);
const { version } = JSON.parse(
  readFileSync(new URL('../node_modules/@jax-js/jax/package.json', import.meta.url), 'utf8'),
);

serve(`jax-js ${version} ${device}`, {
  async matmul(layout, n) {
    const make = (seed) =>
      np.array(Float32Array.from({ length: n * n }, (_, i) => Math.sin(i * seed))).reshape([n, n]);
    const [a, b] = [make(0.7), make(1.3)];
    const multiply = jit((x, y) =>
      np.matmul(layout === 'TN' ? np.transpose(x) : x, layout === 'NT' ? np.transpose(y) : y),
    );
    return async (repetitions) => {
      // Arrays are lazy. One that is dropped before anybody waits for it is never computed.
      const products = Array.from({ length: repetitions }, () => multiply(a.ref, b.ref));
      for (const product of products) {
        await product.blockUntilReady();
        product.dispose();
      }
    };
  },

  async step() {
    const { ids, targets } = tokens();
    // Gradients of indexing fail under jit, so rows are picked by a product with one-hot rows.
    const oneHot = (values) => {
      const rows = new Float32Array(TOKENS * GPT.vocab);
      values.forEach((value, i) => {
        rows[i * GPT.vocab + value] = 1;
      });
      return np.array(rows).reshape([TOKENS, GPT.vocab]);
    };
    const [x, y] = [oneHot(ids), oneHot(targets)];
    let params = {};
    for (const { name, shape, values } of parameters()) {
      params[name] = np.array(values).reshape(shape);
    }
    const zeros = () =>
      Object.fromEntries(Object.entries(params).map(([name, p]) => [name, np.zeros(p.shape)]));
    let [m, v] = [zeros(), zeros()];
    const lossAndGrad = jit(valueAndGrad(loss));
    const update = jit(adamw);
    return async (repetitions) => {
      for (let i = 0; i < repetitions; i++) {
        const [value, grads] = lossAndGrad(refs(params), x.ref, y.ref);
        [params, m, v] = update(params, grads, m, v);
        await value.blockUntilReady();
        value.dispose?.();
        await jax.blockUntilReady(params.wte);
      }
    };
  },
});

function refs(tree) {
  return Object.fromEntries(Object.entries(tree).map(([name, array]) => [name, array.ref]));
}

function layerNorm(x, g, b) {
  const mean = np.mean(x.ref, -1, { keepdims: true });
  const centered = x.sub(mean);
  const variance = np.mean(np.square(centered.ref), -1, { keepdims: true });
  return centered
    .div(np.sqrt(variance.add(1e-5)))
    .mul(g)
    .add(b);
}

function loss(p, x, y) {
  const { batch: B, seq: T, width: C, heads: H, layers } = GPT;
  const D = C / H;
  const places = np.broadcastTo(p.wpe.reshape([1, T, C]), [B, T, C]).reshape([B * T, C]);
  let h = np.matmul(x, p.wte.ref).add(places);
  const heads = (part) => np.transpose(part.reshape([B, T, H, D]), [0, 2, 1, 3]);
  for (let l = 0; l < layers; l++) {
    const w = (name) => p[`h${l}.${name}`];
    const n1 = layerNorm(h.ref, w('ln1.g'), w('ln1.b'));
    const qkv = np.matmul(n1, w('qkv.w')).add(w('qkv.b'));
    const [q, k, v] = np.split(qkv, 3, 1).map(heads);
    const scores = np.matmul(q, np.transpose(k, [0, 1, 3, 2])).mul(1 / Math.sqrt(D));
    const mask = np
      .tril(np.ones([T, T]))
      .sub(1)
      .mul(1e9)
      .reshape([1, 1, T, T]);
    const attended = np.matmul(nn.softmax(scores.add(mask), -1), v);
    const merged = np.transpose(attended, [0, 2, 1, 3]).reshape([B * T, C]);
    h = h.add(np.matmul(merged, w('proj.w')).add(w('proj.b')));
    const n2 = layerNorm(h.ref, w('ln2.g'), w('ln2.b'));
    const hidden = nn.gelu(np.matmul(n2, w('fc.w')).add(w('fc.b')));
    h = h.add(np.matmul(hidden, w('out.w')).add(w('out.b')));
  }
  const final = layerNorm(h, p['lnf.g'], p['lnf.b']);
  const logits = np.matmul(final, np.transpose(p.wte));
  return np.sum(nn.logSoftmax(logits, -1).mul(y)).mul(-1 / TOKENS);
}

function adamw(params, grads, m, v) {
  const [nextP, nextM, nextV] = [{}, {}, {}];
  for (const name of Object.keys(params)) {
    const g = grads[name];
    const m1 = m[name].mul(0.9).add(g.ref.mul(0.1));
    const v1 = v[name].mul(0.999).add(np.square(g).mul(0.001));
    const step = m1.ref.div(np.sqrt(v1.ref).add(1e-8)).mul(GPT.lr);
    nextP[name] = params[name].mul(1 - GPT.lr * 0.01).sub(step);
    nextM[name] = m1;
    nextV[name] = v1;
  }
  return [nextP, nextM, nextV];
}

/** Adds map and filter to iterators. jax-js uses them, and Node 20 lacks them. */
function addIteratorHelpers() {
  const prototype = Object.getPrototypeOf(Object.getPrototypeOf([][Symbol.iterator]()));
  prototype.map ??= function* map(f) {
    let i = 0;
    for (const item of this) {
      yield f(item, i++);
    }
  };
  prototype.filter ??= function* filter(f) {
    let i = 0;
    for (const item of this) {
      if (f(item, i++)) {
        yield item;
      }
    }
  };
  prototype.toArray ??= function toArray() {
    return [...this];
  };
}
