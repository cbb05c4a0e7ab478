// The page's model runner: a small Llama on typed arrays, with its keys and values in blocks.
//
// A slot for each new token, keys and values written to slots, attention that looks back through a block table. `mini_kv/engine/model_runner.py` and `model.py` do the same with PyTorch.
//
//     const runner = new Runner(config, readWeights(bytes), { numBlocks, blockSize, groups });
//     runner.execute(plan);         // {request_id: next token} of the requests that need one
//
// A plan is a list of requests: {request_id, token_ids, begin, tables, samples}. See mini_kv/lessons/play.py.

/** The tensors of a safetensors file in bfloat16, as {name: Float32Array}. */
export function readWeights(buffer) {
  const headerSize = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, headerSize)));
  const weights = {};
  for (const [name, { dtype, data_offsets: offsets }] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    if (dtype !== "BF16") throw new Error(`${name} is ${dtype}, it must be BF16`);
    const halves = new Uint16Array(buffer.slice(8 + headerSize + offsets[0], 8 + headerSize + offsets[1]));
    const bits = Uint32Array.from(halves, (half) => half << 16); // bfloat16 is the upper half of a float32
    weights[name] = new Float32Array(bits.buffer);
  }
  return weights;
}

export class Runner {
  constructor(config, weights, { numBlocks, blockSize, groups }) {
    this.config = config;
    this.weights = weights;
    this.blockSize = blockSize;
    this.kvSize = config.num_key_value_heads * config.head_dim;
    const kinds = config.layer_types ?? Array(config.num_hidden_layers).fill("full_attention");
    this.windows = kinds.map((kind) => (kind === "sliding_attention" ? config.sliding_window : Infinity));
    this.groups = groups; // of each layer: a group has a block table
    const numSlots = numBlocks * blockSize;
    this.keys = kinds.map(() => new Float32Array(numSlots * this.kvSize));
    this.values = kinds.map(() => new Float32Array(numSlots * this.kvSize));
  }

  /** Compute one step, and return the most likely next token of each request that needs one. */
  execute(plan) {
    const tokens = plan.flatMap((request) => request.token_ids.map((id, i) => ({ id, position: request.begin + i, request })));
    let hidden = this.#embed(tokens);
    for (let layer = 0; layer < this.windows.length; layer++) hidden = this.#layer(layer, hidden, tokens);
    const sampled = {};
    let row = -1;
    for (const request of plan) {
      row += request.token_ids.length; // the request's last new token
      if (request.samples) sampled[request.request_id] = this.#nextToken(hidden, row);
    }
    return sampled;
  }

  #embed(tokens) {
    const { hidden_size: size } = this.config;
    const table = this.weights["model.embed_tokens.weight"];
    const hidden = new Float32Array(tokens.length * size);
    tokens.forEach(({ id }, row) => hidden.set(table.subarray(id * size, (id + 1) * size), row * size));
    return hidden;
  }

  #layer(layer, hidden, tokens) {
    const name = `model.layers.${layer}.`;
    const attended = this.#attention(layer, this.#norm(hidden, name + "input_layernorm"), tokens);
    const middle = sum(hidden, attended);
    const normed = this.#norm(middle, name + "post_attention_layernorm");
    const gate = this.#linear(normed, name + "mlp.gate_proj");
    const up = this.#linear(normed, name + "mlp.up_proj");
    const mixed = up.map((value, i) => (value * gate[i]) / (1 + Math.exp(-gate[i]))); // SwiGLU
    return sum(middle, this.#linear(mixed, name + "mlp.down_proj"));
  }

  /** Attention of the new tokens: write their keys and values to their slots, then look back through the block tables. */
  #attention(layer, normed, tokens) {
    const { head_dim: dim, num_attention_heads: numHeads } = this.config;
    const name = `model.layers.${layer}.self_attn.`;
    const query = this.#linear(normed, name + "q_proj");
    const key = this.#linear(normed, name + "k_proj");
    const value = this.#linear(normed, name + "v_proj");
    this.#rotate(query, tokens);
    this.#rotate(key, tokens); // before it is stored: a key in a block never changes
    tokens.forEach(({ position, request }, row) => {
      const slot = this.#slot(request.tables[this.groups[layer]], position);
      this.keys[layer].set(key.subarray(row * this.kvSize, (row + 1) * this.kvSize), slot * this.kvSize);
      this.values[layer].set(value.subarray(row * this.kvSize, (row + 1) * this.kvSize), slot * this.kvSize);
    });
    const out = new Float32Array(tokens.length * numHeads * dim);
    tokens.forEach((token, row) => {
      for (let head = 0; head < numHeads; head++) {
        const at = (row * numHeads + head) * dim;
        this.#lookBack(layer, head, query.subarray(at, at + dim), token, out.subarray(at, at + dim));
      }
    });
    return this.#linear(out, name + "o_proj");
  }

  /** The slot of a token: its block in the table, and its place in the block. */
  #slot(table, position) {
    return table[Math.floor(position / this.blockSize)] * this.blockSize + (position % this.blockSize);
  }

  /** Attention of one query and one head over all tokens that it sees, itself included. Writes to `out`. */
  #lookBack(layer, head, query, { position, request }, out) {
    const { head_dim: dim, num_attention_heads: numHeads, num_key_value_heads: numKvHeads } = this.config;
    const table = request.tables[this.groups[layer]];
    const kvHead = Math.floor((head * numKvHeads) / numHeads);
    const first = Math.max(0, position - this.windows[layer] + 1);
    const scores = [];
    for (let seen = first; seen <= position; seen++) {
      const at = this.#slot(table, seen) * this.kvSize + kvHead * dim;
      scores.push(dot(query, 0, this.keys[layer], at, dim) / Math.sqrt(dim));
    }
    const highest = Math.max(...scores);
    const weights = scores.map((score) => Math.exp(score - highest));
    const total = weights.reduce((a, b) => a + b);
    for (let seen = first; seen <= position; seen++) {
      const at = this.#slot(table, seen) * this.kvSize + kvHead * dim;
      const weight = weights[seen - first] / total;
      for (let i = 0; i < dim; i++) out[i] += weight * this.values[layer][at + i];
    }
  }

  /** Turn each pair of elements (i, i + dim / 2) of each head by an angle that depends on the token's position. */
  #rotate(heads, tokens) {
    const { head_dim: dim, rope_parameters: { rope_theta: theta } } = this.config;
    const size = heads.length / tokens.length;
    tokens.forEach(({ position }, row) => {
      for (let i = 0; i < dim / 2; i++) {
        const angle = position * theta ** ((-2 * i) / dim);
        const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
        for (let head = row * size; head < (row + 1) * size; head += dim) {
          const [a, b] = [heads[head + i], heads[head + i + dim / 2]];
          heads[head + i] = a * cos - b * sin;
          heads[head + i + dim / 2] = b * cos + a * sin;
        }
      }
    });
  }

  #norm(hidden, name) {
    const weight = this.weights[name + ".weight"];
    const out = new Float32Array(hidden.length);
    for (let at = 0; at < hidden.length; at += weight.length) {
      const scale = 1 / Math.sqrt(dot(hidden, at, hidden, at, weight.length) / weight.length + this.config.rms_norm_eps);
      for (let i = 0; i < weight.length; i++) out[at + i] = hidden[at + i] * scale * weight[i];
    }
    return out;
  }

  /** Each row of the input times the matrix `[outputs, inputs]` of that name. */
  #linear(input, name) {
    const matrix = this.weights[name + ".weight"];
    const size = this.#inputs(name);
    const [numRows, numOutputs] = [input.length / size, matrix.length / size];
    const out = new Float32Array(numRows * numOutputs);
    for (let row = 0; row < numRows; row++) {
      for (let i = 0; i < numOutputs; i++) out[row * numOutputs + i] = dot(input, row * size, matrix, i * size, size);
    }
    return out;
  }

  #inputs(name) {
    const { hidden_size, intermediate_size, num_attention_heads, head_dim } = this.config;
    if (name.endsWith("down_proj")) return intermediate_size;
    return name.endsWith("o_proj") ? num_attention_heads * head_dim : hidden_size;
  }

  /** The most likely token after a row. The embedding is the matrix of the logits, too. */
  #nextToken(hidden, row) {
    const { hidden_size: size, vocab_size } = this.config;
    const last = this.#norm(hidden.subarray(row * size, (row + 1) * size), "model.norm");
    const table = this.weights["model.embed_tokens.weight"];
    let [best, most] = [0, -Infinity];
    for (let id = 0; id < vocab_size; id++) {
      const logit = dot(last, 0, table, id * size, size);
      if (logit > most) [best, most] = [id, logit];
    }
    return best;
  }
}

function dot(a, at, b, bt, size) {
  let total = 0;
  for (let i = 0; i < size; i++) total += a[at + i] * b[bt + i];
  return total;
}

function sum(a, b) {
  return a.map((value, i) => value + b[i]);
}
