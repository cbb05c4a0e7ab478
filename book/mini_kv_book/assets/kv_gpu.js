// Keys and values on the reader's GPU: `GpuKV` does what `KV` of kv_runner.js does, with the kernels of kv_gpu.wgsl.
//
//     const gpu = await openGpu();
//     new Runner(config, weights, { numBlocks, blockSize, groups, makeKV: (shape) => new GpuKV(gpu, shape) });
//
// The cache never leaves the GPU. New keys and values go there, and the result of attention comes back.

/** The type checker does not know WebGPU. @type {any} */
const { navigator, GPUBufferUsage: Usage, GPUMapMode } = globalThis;

/** Whether this browser can compute on a GPU. */
export async function hasGpu() {
  return Boolean(await navigator.gpu?.requestAdapter());
}

/** A GPU and the kernels, in their language. They are compiled when the shape of a cache is known. */
export async function openGpu() {
  const adapter = await navigator.gpu?.requestAdapter();
  if (!adapter) throw new Error("this browser has no WebGPU");
  const device = await adapter.requestDevice();
  const answer = await fetch(new URL("kv_gpu.wgsl", import.meta.url));
  if (!answer.ok) throw new Error(`kv_gpu.wgsl could not be loaded (${answer.status})`);
  return { device, module: device.createShaderModule({ code: await answer.text() }) };
}

export class GpuKV {
  constructor({ device, module }, { windows, numBlocks, blockSize, numHeads, numKvHeads, headSize }) {
    this.device = device;
    this.numHeads = numHeads;
    this.numKvHeads = numKvHeads;
    const constants = { HEAD_SIZE: headSize, NUM_HEADS: numHeads, NUM_KV_HEADS: numKvHeads, BLOCK_SIZE: blockSize };
    const compiled = (entryPoint, WINDOW) =>
      device.createComputePipeline({ layout: "auto", compute: { module, entryPoint, constants: { ...constants, WINDOW } } });
    const size = 4 * numBlocks * blockSize * numKvHeads * headSize; // a float32 has 4 bytes
    this.layers = windows.map((window) => ({
      cache: [this.#buffer(size, Usage.STORAGE), this.#buffer(size, Usage.STORAGE)],
      writeKV: compiled("write_kv", 0),
      attend: compiled("attend", window === Infinity ? 0 : window),
    }));
  }

  /** Write new keys and values to their slots. */
  write(layer, key, value, slotMapping) {
    const { writeKV, cache } = this.layers[layer];
    const encoder = this.device.createCommandEncoder();
    const inputs = [key, value, slotMapping].map((data) => this.#copied(data));
    this.#run(encoder, writeKV, cache, inputs, [slotMapping.length, this.numKvHeads]);
    this.#submit(encoder, inputs);
  }

  /** Attention of new tokens, each over all tokens that it sees, itself included. */
  async attend(layer, query, { positions, requests, blockTables, tableStride }) {
    const { attend, cache } = this.layers[layer];
    this.device.pushErrorScope("validation");
    const encoder = this.device.createCommandEncoder();
    const out = this.#buffer(query.byteLength, Usage.STORAGE | Usage.COPY_SRC);
    const result = this.#buffer(query.byteLength, Usage.COPY_DST | Usage.MAP_READ);
    const inputs = [query, positions, requests, blockTables, new Uint32Array([tableStride])].map((data) => this.#copied(data));
    this.#run(encoder, attend, cache, [...inputs, out], [positions.length, this.numHeads]);
    encoder.copyBufferToBuffer(out, 0, result, 0, query.byteLength); // a script can only read a buffer that no kernel uses
    this.#submit(encoder, [...inputs, out]);
    const error = await this.device.popErrorScope();
    if (error) throw new Error(error.message);
    await result.mapAsync(GPUMapMode.READ); // after all that was submitted
    const attended = new Float32Array(result.getMappedRange()).slice();
    result.destroy();
    return attended;
  }

  #buffer(size, usage, mappedAtCreation = false) {
    return this.device.createBuffer({ size, usage, mappedAtCreation });
  }

  /** A buffer with a copy of an array. */
  #copied(data) {
    const buffer = this.#buffer(data.byteLength, Usage.STORAGE | Usage.UNIFORM, true);
    new data.constructor(buffer.getMappedRange()).set(data);
    buffer.unmap();
    return buffer;
  }

  /** Run one kernel: `programs` is the size of its grid. */
  #run(encoder, pipeline, cache, inputs, programs) {
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    [cache, inputs].forEach((buffers, group) => {
      const entries = buffers.map((buffer, binding) => ({ binding, resource: { buffer } }));
      pass.setBindGroup(group, this.device.createBindGroup({ layout: pipeline.getBindGroupLayout(group), entries }));
    });
    pass.dispatchWorkgroups(...programs);
    pass.end();
  }

  /** Submit the work. The GPU frees the buffers after it. */
  #submit(encoder, buffers) {
    this.device.queue.submit([encoder.finish()]);
    for (const buffer of buffers) buffer.destroy();
  }
}
