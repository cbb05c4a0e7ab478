// The page's model runner: a small Llama on typed arrays, with its keys and values in blocks.
//
// A slot for each new token, keys and values written to slots, attention that looks back through a block table. `mini_kv/engine/model_runner.py` and `model.py` do the same with PyTorch.
//
//     const { config, tensors } = await loadModel("tiny");
//     const runner = new Runner(config, tensors, { numBlocks, blockSize, groups });
//     await runner.execute(plan);   // {request_id: next token} of the requests that need one
//
// A plan is a list of requests: {request_id, token_ids, begin, tables, samples}. See mini_kv/course/lessons/play.py.
// `makeKV` makes another memory of keys and values, with its own attention: see kv_gpu.js.

/** The config and the weights of a small model that the site serves. */
export async function loadModel(name) {
  const files = ["config.json", "model.safetensors"].map((file) => fetch(new URL(`kv-lab/${name}/${file}`, import.meta.url)));
  const [config, weights] = await Promise.all(files);
  for (const { ok, url, status } of [config, weights]) if (!ok) throw new Error(`${url} could not be loaded (${status})`);
  return { config: await config.json(), tensors: readWeights(await weights.arrayBuffer()) };
}

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
  constructor(config, weights, { numBlocks, blockSize, groups, makeKV = makePlainKV }) {
    this.config = config;
    this.weights = weights;
    this.blockSize = blockSize;
    this.groups = groups; // of each layer: a group has a block table
    const { num_attention_heads: numHeads, num_key_value_heads: numKvHeads, head_dim: headSize } = config;
    const kinds = config.layer_types ?? Array(config.num_hidden_layers).fill("full_attention");
    const windows = kinds.map((kind) => (kind === "sliding_attention" ? config.sliding_window : Infinity));
    this.kv = makeKV({ windows, numBlocks, blockSize, numHeads, numKvHeads, headSize });
  }

  /** Compute one step, and return the most likely next token of each request that needs one. */
  async execute(plan) {
    const tokens = plan.flatMap(({ token_ids, begin }, row) => token_ids.map((id, i) => ({ id, position: begin + i, row })));
    const metadata = plan[0].tables.map((_, group) => this.#metadata(plan, tokens, group));
    let hidden = this.#embed(tokens);
    for (const [layer, group] of this.groups.entries()) hidden = await this.#layer(layer, hidden, tokens, metadata[group]);
    const sampled = {};
    let row = -1;
    for (const request of plan) {
      row += request.token_ids.length; // the request's last new token
      if (request.samples) sampled[request.request_id] = this.#nextToken(hidden, row);
    }
    return sampled;
  }

  /** What a step's attention needs, with the block tables of one group: a row per request. */
  #metadata(plan, tokens, group) {
    const tables = plan.map((request) => request.tables[group]);
    const tableStride = Math.max(...tables.map((table) => table.length));
    const blockTables = new Uint32Array(tables.length * tableStride);
    tables.forEach((table, row) => blockTables.set(table, row * tableStride));
    const slots = tokens.map(({ position, row }) => slotOf(tables[row], position, this.blockSize));
    return {
      positions: Uint32Array.from(tokens, ({ position }) => position),
      requests: Uint32Array.from(tokens, ({ row }) => row), // each token's row of the block tables
      slotMapping: Uint32Array.from(slots),
      blockTables,
      tableStride,
    };
  }

  #embed(tokens) {
    const { hidden_size: size } = this.config;
    const table = this.weights["model.embed_tokens.weight"];
    const hidden = new Float32Array(tokens.length * size);
    tokens.forEach(({ id }, row) => hidden.set(table.subarray(id * size, (id + 1) * size), row * size));
    return hidden;
  }

  async #layer(layer, hidden, tokens, metadata) {
    const name = `model.layers.${layer}.`;
    const attended = await this.#attention(layer, this.#norm(hidden, name + "input_layernorm"), tokens, metadata);
    const middle = sum(hidden, attended);
    const normed = this.#norm(middle, name + "post_attention_layernorm");
    const gate = this.#linear(normed, name + "mlp.gate_proj");
    const up = this.#linear(normed, name + "mlp.up_proj");
    const mixed = up.map((value, i) => (value * gate[i]) / (1 + Math.exp(-gate[i]))); // SwiGLU
    return sum(middle, this.#linear(mixed, name + "mlp.down_proj"));
  }

  /** Attention of the new tokens: write their keys and values to their slots, then look back through the block tables. */
  async #attention(layer, normed, tokens, metadata) {
    const name = `model.layers.${layer}.self_attn.`;
    const query = this.#linear(normed, name + "q_proj");
    const key = this.#linear(normed, name + "k_proj");
    const value = this.#linear(normed, name + "v_proj");
    this.#rotate(query, tokens);
    this.#rotate(key, tokens); // before it is stored: a key in a block never changes
    this.kv.write(layer, key, value, metadata.slotMapping);
    return this.#linear(await this.kv.attend(layer, query, metadata), name + "o_proj");
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

/** Keys and values of all layers in slots, and attention that reads them. */
export class KV {
  constructor({ windows, numBlocks, blockSize, numHeads, numKvHeads, headSize }) {
    this.windows = windows;
    this.blockSize = blockSize;
    this.headSize = headSize;
    this.numHeads = numHeads;
    this.group = numHeads / numKvHeads; // query heads per KV head
    this.rowSize = numKvHeads * headSize;
    this.keys = windows.map(() => new Float32Array(numBlocks * blockSize * this.rowSize));
    this.values = windows.map(() => new Float32Array(numBlocks * blockSize * this.rowSize));
  }

  /** Write new keys and values to their slots. */
  write(layer, key, value, slotMapping) {
    slotMapping.forEach((slot, token) => {
      this.keys[layer].set(key.subarray(token * this.rowSize, (token + 1) * this.rowSize), slot * this.rowSize);
      this.values[layer].set(value.subarray(token * this.rowSize, (token + 1) * this.rowSize), slot * this.rowSize);
    });
  }

  /** Attention of new tokens, each over all tokens that it sees, itself included. */
  attend(layer, query, { positions, requests, blockTables, tableStride }) {
    const out = new Float32Array(query.length);
    positions.forEach((position, token) => {
      const table = blockTables.subarray(requests[token] * tableStride);
      for (let head = 0; head < this.numHeads; head++) {
        const at = (token * this.numHeads + head) * this.headSize;
        this.#lookBack(layer, head, query.subarray(at, at + this.headSize), position, table, out.subarray(at, at + this.headSize));
      }
    });
    return out;
  }

  /** Attention of one query and one head. Writes to `out`. */
  #lookBack(layer, head, query, position, table, out) {
    const kvHead = Math.floor(head / this.group);
    const first = Math.max(0, position - this.windows[layer] + 1);
    const rows = [];
    for (let seen = first; seen <= position; seen++) {
      rows.push(slotOf(table, seen, this.blockSize) * this.rowSize + kvHead * this.headSize);
    }
    const scores = rows.map((row) => dot(query, 0, this.keys[layer], row, this.headSize) / Math.sqrt(this.headSize));
    const highest = Math.max(...scores);
    const weights = scores.map((score) => Math.exp(score - highest));
    const total = weights.reduce((a, b) => a + b);
    rows.forEach((row, seen) => {
      const weight = weights[seen] / total;
      for (let i = 0; i < this.headSize; i++) out[i] += weight * this.values[layer][row + i];
    });
  }
}

/** Any class with the methods of `KV` can be its place. @returns {any} */
function makePlainKV(shape) {
  return new KV(shape);
}

/** The slot of a token: its block in the table, and its place in the block. */
function slotOf(table, position, blockSize) {
  return table[Math.floor(position / blockSize)] * blockSize + (position % blockSize);
}

function dot(a, at, b, bt, size) {
  let total = 0;
  for (let i = 0; i < size; i++) total += a[at + i] * b[bt + i];
  return total;
}

function sum(a, b) {
  return a.map((value, i) => value + b[i]);
}
