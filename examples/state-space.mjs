// A state-space model of bytes, trained by `shardweave train --model state-space.mjs`: in place of
// attention each channel keeps one number, h[t] = a h[t-1] + x[t], whose decay `a` is learnt.
const WIDTH = 64;
const LAYERS = 2;

export function create({ device, init, nn, tensor, seq, vocabularySize, dtype }) {
  const { cast, crossEntropy, exp, matmul, mul, reshape, silu, transpose } = tensor;

  /** x [rows, seq, width] to the same shape, by the matrix of a^(i - j), which is 0 where j > i. */
  class Recurrence extends nn.Module {
    constructor(from) {
      super(device);
      // Decays exp(-exp(rate)): a channel remembers between half a token and fifty.
      this.rate = this.parameter('rate', from.uniform('rate', [WIDTH], { low: -4, high: 0.5 }));
      const places = Array.from(
        { length: seq * seq },
        (_, at) => Math.floor(at / seq) - (at % seq),
      );
      const distances = places.map((distance) => (distance < 0 ? 1e4 : distance)); // a^1e4 is 0
      this.distances = device.tensor(Float32Array.from(distances), [1, seq, seq]).keep();
    }

    forward(x) {
      const rate = reshape(exp(cast(this.rate, 'f32')), [WIDTH, 1, 1]);
      const powers = exp(mul(rate, mul(this.distances, device.full([1], -1)))); // [width, seq, seq]
      const states = matmul(cast(powers, dtype), transpose(x, [2, 1, 0])); // [width, seq, rows]
      return transpose(states, [2, 1, 0]);
    }

    releaseOwned() {
      this.distances.dispose();
    }
  }

  class Block extends nn.Module {
    constructor(from) {
      super(device);
      const linear = (name) =>
        this.child(
          name,
          new nn.Linear(device, { inFeatures: WIDTH, outFeatures: WIDTH, init: from.at(name) }),
        );
      this.norm = this.child(
        'norm',
        new nn.RmsNorm(device, { normalizedShape: WIDTH, init: from.at('norm') }),
      );
      [this.into, this.gate, this.out] = ['into', 'gate', 'out'].map(linear);
      this.recurrence = this.child('recurrence', new Recurrence(from.at('recurrence')));
    }

    async forward(x) {
      const normed = await this.norm.call(x);
      const states = await this.recurrence.call(await this.into.call(normed));
      const gated = mul(states, silu(await this.gate.call(normed)));
      return this.out.call(gated, { residual: x });
    }
  }

  const blocks = Array.from({ length: LAYERS }, (_, i) => new Block(init.at(`${i + 1}`)));
  const last = init.at(`${LAYERS + 1}`);
  return {
    // The layers of a Sequential are what --strategy fsdp shards and offload slices.
    module: new nn.Sequential(device, [
      new nn.Embedding(device, {
        numEmbeddings: vocabularySize,
        embeddingDim: WIDTH,
        init: init.at('0'),
      }),
      ...blocks,
      new nn.Linear(device, { inFeatures: WIDTH, outFeatures: vocabularySize, init: last }),
    ]),
    // Without rows of its own it gets those of --data.
    async loss(module, { tokens, targets }) {
      return crossEntropy(await module.call(tokens), targets, { reduction: 'sum' });
    },
  };
}
