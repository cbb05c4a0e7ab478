// Two kernels in WebGPU's language: the write of keys and values, attention over blocks.
//
// The names are those of mini_kv/attention/triton_kernels.py. A program (WebGPU: a
// workgroup) has a lane per element of a head. Names in capitals are known when the
// kernel is compiled. kv_gpu.js starts the programs.

override HEAD_SIZE: u32;
override NUM_HEADS: u32;
override NUM_KV_HEADS: u32;
override BLOCK_SIZE: u32;
override WINDOW: u32; // 0: none

// A layer's keys and values, [num_blocks, BLOCK_SIZE, NUM_KV_HEADS, HEAD_SIZE].
@group(0) @binding(0) var<storage, read_write> k_cache: array<f32>;
@group(0) @binding(1) var<storage, read_write> v_cache: array<f32>;

@group(1) @binding(0) var<storage, read> key: array<f32>; // [num_tokens, NUM_KV_HEADS, HEAD_SIZE]
@group(1) @binding(1) var<storage, read> value: array<f32>; // the same
@group(1) @binding(2) var<storage, read> slot_mapping: array<u32>; // [num_tokens]

/// Write new keys and values to their slots. Grid: (num_tokens, NUM_KV_HEADS).
@compute @workgroup_size(HEAD_SIZE)
fn write_kv(
  @builtin(workgroup_id) program: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let token = program.x;
  let kv_head = program.y;
  let source = row_of(token, kv_head) + lane;
  let target_row = row_of(slot_mapping[token], kv_head) + lane;
  k_cache[target_row] = key[source];
  v_cache[target_row] = value[source];
}

@group(1) @binding(0) var<storage, read> query: array<f32>; // [num_tokens, NUM_HEADS, HEAD_SIZE]
@group(1) @binding(1) var<storage, read> positions: array<u32>; // [num_tokens]
@group(1) @binding(2) var<storage, read> requests: array<u32>; // [num_tokens]: rows of block_tables
@group(1) @binding(3) var<storage, read> block_tables: array<u32>; // [num_reqs, table_stride]
@group(1) @binding(4) var<uniform> table_stride: u32;
@group(1) @binding(5) var<storage, read_write> out: array<f32>; // as the query

const LOWEST = -1e30; // less than every score

// What the lanes of a program share: where the row of each position of a tile begins,
// and the position's score.
var<workgroup> rows: array<u32, HEAD_SIZE>;
var<workgroup> scores: array<f32, HEAD_SIZE>;

/// Compute attention of one query and one head. Grid: (num_tokens, NUM_HEADS).
///
/// Each lane computes the score of one position of a tile. Then each lane adds up one
/// element of the tile's values.
@compute @workgroup_size(HEAD_SIZE)
fn attend(
  @builtin(workgroup_id) program: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let token = program.x;
  let head = program.y;
  let kv_head = head / (NUM_HEADS / NUM_KV_HEADS);
  let q = (token * NUM_HEADS + head) * HEAD_SIZE;
  let table = requests[token] * table_stride;
  let end = positions[token] + 1;

  // This lane's element: the sum of the values, each times exp(its score - largest).
  var acc = 0.0;
  var total = 0.0; // the sum of these factors
  var largest = LOWEST; // the largest score so far
  let begin = first_visible_position(positions[token]);
  for (var tile_begin = begin; tile_begin < end; tile_begin += HEAD_SIZE) {
    let tile_size = min(HEAD_SIZE, end - tile_begin);
    if (lane < tile_size) { // a slot after the end may hold anything: it is not read
      let position = tile_begin + lane;
      let block = block_tables[table + position / BLOCK_SIZE];
      let slot = block * BLOCK_SIZE + position % BLOCK_SIZE;
      rows[lane] = row_of(slot, kv_head);
      scores[lane] = dot_with_key(q, rows[lane]) / sqrt(f32(HEAD_SIZE));
    }
    workgroupBarrier(); // now all lanes can read all scores

    var new_largest = largest;
    for (var i = 0u; i < tile_size; i++) {
      new_largest = max(new_largest, scores[i]);
    }
    let shrink = exp(largest - new_largest);
    acc *= shrink;
    total *= shrink;
    for (var i = 0u; i < tile_size; i++) {
      let weight = exp(scores[i] - new_largest);
      acc += weight * v_cache[rows[i] + lane];
      total += weight;
    }
    largest = new_largest;
    workgroupBarrier(); // the next tile replaces the scores
  }
  out[q + lane] = acc / total;
}

/// Return the first position that the token at `position` sees.
fn first_visible_position(position: u32) -> u32 {
  if (WINDOW == 0 || position < WINDOW) {
    return 0;
  }
  return position - WINDOW + 1;
}

/// Return where a head's row begins: of a slot in the cache, or of a new token.
fn row_of(slot: u32, kv_head: u32) -> u32 {
  return (slot * NUM_KV_HEADS + kv_head) * HEAD_SIZE;
}

fn dot_with_key(q: u32, row: u32) -> f32 {
  var score = 0.0;
  for (var i = 0u; i < HEAD_SIZE; i++) {
    score += query[q + i] * k_cache[row + i];
  }
  return score;
}
