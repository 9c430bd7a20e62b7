// Texts that --help prints below the list of flags, for the program and for each command.
#pragma once

namespace attend::cli {

inline constexpr const char* kMainFooter = R"(Examples:
  attend generate --batch_size 2 --num_heads 8 --seq_len 512 --head_dim 64
  attend run --data data/B2_H8_S512_D64 --mode both --check
  attend bench --grid seed --compute cpu,reference
  attend COMMAND --help

In all flags - and _ are the same: --batch-size is --batch_size. Flags and names cannot be abbreviated.
Exit status: 0 success, 1 a check failed, 2 wrong usage, invalid input or missing hardware. After a signal the program
ends within a second or two and leaves no unfinished file; the status is 130 (SIGINT), 143 (SIGTERM) or 129 (SIGHUP).)";

inline constexpr const char* kGenerateFooter =
    R"(Writes OUTPUT_DIR/B2_H8_S512_D64/{Q,K,V}.bin: raw little-endian numbers in C order, with the dimensions
(batch, heads, seqlen, head_dim).
The values have the distribution N(0,1). They depend only on the seed, so every machine writes the same bytes.
The command reserves the disk space first. If there is too little, it writes nothing.
The name of the folder gives the sizes. Other sizes of K and V and another dtype than f32 are part of the name:
B2_H8_Hkv2_Sq128_Sk512_D64_Dv32_bf16.

Examples:
  attend generate
  attend generate --batch_size 1 --num_heads 32 --num_heads_kv 8 --seq_len 4096 --head_dim 128 --dtype bf16 --seed 7)";

inline constexpr const char* kRunFooter =
    R"(Reads a folder that `attend generate` wrote, or three .npy files. Writes O and logsumexp (forward) and dQ, dK and
dV (backward) into that folder, or into OUTPUT_DIR. Backward alone reads the O and logsumexp of an earlier forward pass
with the same options. The incoming gradient is dO, or ones if there is no dO.
All files of a run appear at the same moment. If the program is killed, either all files are new or all are unchanged.
An output must not be a link to an input or to another tensor. Other links are followed and kept.
--check compares with a float64 reference. In half precision, an error may be twice that of the textbook algorithm in
the same dtype, plus the rounding of the result. Large float32 scores raise the limit by the effect of their rounding.
Sums that cancel raise the limit for gradients in the same way.
--score changes each score by a function, which is one line of text, on CPUs only. docs/custom_scores.md describes the
language. The gradient of a tensor NAME that the function reads is written to d_NAME.npy.
--ring splits the sequence over the ranks of a ring on CPUs. The ranks are threads of this process if --ranks N is
given, otherwise the processes of an mpirun. Every rank reads the inputs and computes its share. Rank 0 checks the
results and writes the same files as a single process.
Open MPI refuses to run as root, or with more ranks than cores, without the two flags of the last example.

Examples:
  attend run --data data/B2_H8_S512_D64 --mode both --causal --check
  attend run --data data/B2_H8_S512_D64 --compute reference --json result.json
  attend run --q Q.npy --k K.npy --v V.npy --mode both --output_dir out
  attend run --data data/B2_H8_S512_D64 --mode both --check --score 'score - 0.1 * abs(q - k)'
  attend run --data data/B2_H8_S512_D64 --check --score 'doc[q] == doc[k] ? score : -inf' --tensor doc=doc.npy
  attend run --ring zigzag --ranks 4 --data data/B2_H8_S512_D64 --mode both --causal --check
  mpirun --allow-run-as-root --oversubscribe -n 4 attend run --ring zigzag --data data/B2_H8_S512_D64 --check)";

inline constexpr const char* kBenchFooter =
    R"(Times random data of each size in the grid, or of one problem. A time is the median of --repeat runs, after one
warm-up run. --json and --csv are written after each pass of a size, so an interruption loses only the pass in progress.
--grid masks times masks and scores that are given as text (docs/custom_scores.md), and the built-in options of the same
meaning. The problem is --problem if given, otherwise 2,16,8192,128 in bf16 on a GPU or 1,4,1024,64 in f32 on a CPU.
Speeds count only the pairs of a row and a key that the mask keeps.
A grid file is JSON: [{"B": 2, "H": 8, "S": 512, "D": 64}, {"B": 1, "H": 32, "Hkv": 8, "Sq": 1, "Sk": 4096, "D": 128}]

Examples:
  attend bench
  attend bench --grid seed --compute cpu,cpu_naive --mode forward --causal --csv times.csv
  attend bench --problem 2,16,2048,64 --dtype bf16 --compute cpu --causal
  attend bench --grid sizes.json --dtype bf16 --json times.json
  attend bench --grid masks --device cuda --json masks.json)";

inline constexpr const char* kCompileFooter =
    R"(Compiles the usual variants of the GPU kernels with NVRTC and prints the resources of each. Needs no GPU. The
machine code is stored in the cache ($ATTEND_CACHE_DIR, otherwise the XDG cache folder), where later calls find it. The
exit status is 1 if a kernel has register spills, a stack frame or a compiler warning.

Examples:
  attend compile
  attend compile --cover
  attend compile --arch sm_90a --compute naive --json kernels.json)";

inline constexpr const char* kLadderFooter =
    R"(Checks every kernel of the ladder that runs on this GPU, and the production kernels at its end, against the
float64 reference, with full and causal masks, at odd sizes. Then times them in turns at one size for each dtype, and a
matrix product by cuBLAS if cuBLAS is installed. If a check fails, nothing is timed and the exit status is 1.

Examples:
  attend ladder
  attend ladder --compute fa2,wgmma --repeat 20
  attend ladder --compute wgmma_specialized,sm90_forward,sm90_backward
  attend ladder --json results/h200/ladder.json)";

inline constexpr const char* kSweepFooter =
    R"(Times many variants of one family of kernels on one problem: the variant that the family picks, and every
combination of the values of --set. All variants are compiled first, on all cores. Then they are timed in turns, and
their results are compared with those of the variant that the family picks. attend info --explain B,H,S,D prints the
names that --set accepts.

Examples:
  attend sweep --compute simt --problem 2,16,2048,64 --set block_m=32,64 --set threads_x=8,16
  attend sweep --compute sm90_forward --problem 2,16,8192,128 --causal --set block_n=96,128 --set overlap=0,1
  attend sweep --compute simt --problem 1,32,4096,128 --mode backward --set keys_min_blocks=1,2)";

inline constexpr const char* kRingFooter =
    R"(Computes one random problem on a ring of ranks. Its S is the number of tokens of all ranks together. For each
step the command prints the time of computation, the time of the exchange, and the part of the exchange that no
computation hides. Ranks are the processes of an mpirun, GPUs of this machine over NCCL, or threads. On a machine
with N GPUs, rank r of the threads uses GPU r % N. Ideal is the time that the slowest rank needs for its share of the
work, its rows with the keys that they see. It is measured without a ring, on all ranks at the same time, in turns with
the ring.
--explain compares the algorithms by the cost model that `automatic` uses, and computes nothing.

Examples:
  attend ring --ranks 4 --problem 1,8,4096,64 --causal
  attend ring --problem 1,16,131072,128 --causal --sharding zigzag --mode both --json ring.json
  attend ring --ranks 8 --problem 1,32,8192,128 --num_heads_kv 8 --algorithm all_to_all
  attend ring --ranks 64 --problem 1,32,1048576,128 --causal --device cuda --explain
  mpirun --allow-run-as-root --oversubscribe -n 4 attend ring --problem 1,8,4096,64 --causal --mode forward)";

inline constexpr const char* kCacheFooter =
    R"(Kernels for GPUs are compiled at their first use and kept on disk. show prints the folder, the number of kernels
and their names. clear removes all kernels and no other file. limit prints the number of bytes that they may occupy.
The folder is $ATTEND_CACHE_DIR, otherwise $XDG_CACHE_HOME/attend, otherwise $HOME/.cache/attend. $ATTEND_CACHE_LIMIT
sets the limit: 512MiB, unlimited, or 0 to keep nothing; 1GiB if not set. Beyond the limit, the least recently used
kernels are removed first.

Examples:
  attend cache
  attend cache show --json
  attend cache clear
  attend cache limit)";

inline constexpr const char* kInfoFooter =
    R"(Examples:
  attend info
  attend info --explain 2,16,8192,128 --dtype bf16 --causal
  attend info --explain 1,32,1,128 --seq_len_k 8192 --num_heads_kv 8)";

}  // namespace attend::cli
