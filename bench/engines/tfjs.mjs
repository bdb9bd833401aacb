// The engine TensorFlow.js on WebGPU or wasm. Usage: node tfjs.mjs webgpu|wasm

import { GPT, parameters, TOKENS, tokens } from '../gpt-shape.mjs';
import { serve } from './serve.mjs';

const device = process.argv[2];
if (device === 'webgpu') {
  await import('./webgpu-globals.mjs');
}
const tf = await import('@tensorflow/tfjs');
await import(
  device === 'webgpu' ? '@tensorflow/tfjs-backend-webgpu' : '@tensorflow/tfjs-backend-wasm'
);
await tf.setBackend(device);
await tf.ready();

serve(`tfjs ${tf.version.tfjs} ${device}`, {
  async matmul(layout, n) {
    const make = (seed) =>
      tf.tensor2d(
        Float32Array.from({ length: n * n }, (_, i) => Math.sin(i * seed)),
        [n, n],
      );
    const [a, b] = [make(0.7), make(1.3)];
    return async (repetitions) => {
      let last;
      for (let i = 0; i < repetitions; i++) {
        last?.dispose();
        last = tf.matMul(a, b, layout === 'TN', layout === 'NT');
      }
      // Reading one element waits for the queue without reading back the whole product.
      await tf.tidy(() => tf.slice(last, [0, 0], [1, 1])).data();
      last.dispose();
    };
  },

  async step() {
    const { ids, targets } = tokens();
    const p = {};
    for (const { name, shape, values } of parameters()) {
      p[name] = tf.variable(tf.tensor(values, shape), true, name);
    }
    // The wasm backend lacks the gradient of gathering, so rows are picked by a product with
    // one-hot rows.
    const x = tf.oneHot(tf.tensor1d(ids, 'int32'), GPT.vocab).toFloat();
    const y = tf.oneHot(tf.tensor1d(targets, 'int32'), GPT.vocab).toFloat();
    const state = Object.keys(p).map((name) => [
      name,
      tf.variable(tf.zerosLike(p[name])),
      tf.variable(tf.zerosLike(p[name])),
    ]);
    const mask = tf.tidy(() =>
      tf.linalg
        .bandPart(tf.ones([GPT.seq, GPT.seq]), -1, 0)
        .sub(1)
        .mul(1e9)
        .reshape([1, 1, GPT.seq, GPT.seq]),
    );
    return async (repetitions) => {
      for (let i = 0; i < repetitions; i++) {
        const { value, grads } = tf.variableGrads(() => loss(p, x, y, mask));
        tf.tidy(() => {
          for (const [name, m, v] of state) {
            const g = grads[name];
            m.assign(m.mul(0.9).add(g.mul(0.1)));
            v.assign(v.mul(0.999).add(g.square().mul(0.001)));
            const step = m.div(v.sqrt().add(1e-8)).mul(GPT.lr);
            p[name].assign(p[name].mul(1 - GPT.lr * 0.01).sub(step));
          }
        });
        await value.data();
        await tf.tidy(() => tf.slice(p.wte, [0, 0], [1, 1])).data();
        value.dispose();
        tf.dispose(grads);
      }
    };
  },
});

function layerNorm(x, g, b) {
  const { mean, variance } = tf.moments(x, -1, true);
  return x.sub(mean).div(variance.add(1e-5).sqrt()).mul(g).add(b);
}

function gelu(x) {
  const inner = x.add(x.pow(tf.scalar(3)).mul(0.044715)).mul(Math.sqrt(2 / Math.PI));
  return x.mul(0.5).mul(inner.tanh().add(1));
}

function loss(p, x, y, mask) {
  const { batch: B, seq: T, width: C, heads: H, layers } = GPT;
  const D = C / H;
  let h = tf
    .matMul(x, p.wte)
    .reshape([B, T, C])
    .add(p.wpe)
    .reshape([B * T, C]);
  const heads = (part) => part.reshape([B, T, H, D]).transpose([0, 2, 1, 3]);
  for (let l = 0; l < layers; l++) {
    const w = (name) => p[`h${l}.${name}`];
    const qkv = tf.matMul(layerNorm(h, w('ln1.g'), w('ln1.b')), w('qkv.w')).add(w('qkv.b'));
    const [q, k, v] = tf.split(qkv, 3, 1).map(heads);
    const scores = tf
      .matMul(q, k, false, true)
      .mul(1 / Math.sqrt(D))
      .add(mask);
    const merged = tf
      .matMul(tf.softmax(scores), v)
      .transpose([0, 2, 1, 3])
      .reshape([B * T, C]);
    h = h.add(tf.matMul(merged, w('proj.w')).add(w('proj.b')));
    const hidden = gelu(tf.matMul(layerNorm(h, w('ln2.g'), w('ln2.b')), w('fc.w')).add(w('fc.b')));
    h = h.add(tf.matMul(hidden, w('out.w')).add(w('out.b')));
  }
  const logits = tf.matMul(layerNorm(h, p['lnf.g'], p['lnf.b']), p.wte, false, true);
  return tf
    .logSoftmax(logits)
    .mul(y)
    .sum()
    .mul(-1 / TOKENS);
}
